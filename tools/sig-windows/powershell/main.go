// powershell.exe of the test images: the part of PowerShell's language and commands that the cases of [sig-windows] use.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

type thrown struct{ text string }
type exited struct{ code int }

type scope struct{ vars map[string]any }

var jobs sync.WaitGroup

func main() {
	args := os.Args[1:]
	script := ""
	if len(args) > 0 && (strings.EqualFold(args[0], "-Command") || strings.EqualFold(args[0], "-c")) {
		script = strings.Join(args[1:], " ")
	} else if len(args) == 1 && strings.HasSuffix(strings.ToLower(args[0]), ".ps1") {
		data, err := os.ReadFile(args[0])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		script = string(data)
	} else {
		script = strings.Join(args, " ")
	}
	defer func() {
		switch e := recover().(type) {
		case nil:
		case thrown:
			fmt.Fprintln(os.Stderr, e.text)
			os.Exit(1)
		case exited:
			os.Exit(e.code)
		default:
			panic(e)
		}
	}()
	p := &parser{[]rune(script), 0}
	s := &scope{map[string]any{}}
	p.block(s, false, true)
}

type parser struct {
	text []rune
	at   int
}

func fail(format string, args ...any) {
	panic(thrown{"powershell (of the test images): " + fmt.Sprintf(format, args...)})
}

func (p *parser) peek() rune {
	if p.at < len(p.text) {
		return p.text[p.at]
	}
	return 0
}

func (p *parser) blanks(lines bool) {
	for {
		switch c := p.peek(); {
		case c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r' || c == ';')):
			p.at++
		case c == '#':
			for p.peek() != 0 && p.peek() != '\n' {
				p.at++
			}
		default:
			return
		}
	}
}

// enclosed returns the text between the bracket here and its partner.
func (p *parser) enclosed() string {
	open := p.peek()
	close := map[rune]rune{'(': ')', '{': '}'}[open]
	if close == 0 {
		fail("a bracket is missing at %q", string(p.text[p.at:]))
	}
	depth, begin := 0, p.at+1
	var quote rune
	for ; p.at < len(p.text); p.at++ {
		c := p.peek()
		switch {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '\'' || c == '"':
			quote = c
		case c == open:
			depth++
		case c == close:
			depth--
			if depth == 0 {
				p.at++
				return string(p.text[begin : p.at-1])
			}
		}
	}
	fail("a bracket is not closed")
	return ""
}

func (p *parser) keyword() string {
	end := p.at
	for end < len(p.text) && (p.text[end] >= 'a' && p.text[end] <= 'z' || p.text[end] >= 'A' && p.text[end] <= 'Z') {
		end++
	}
	return strings.ToLower(string(p.text[p.at:end]))
}

// block runs statements; show prints what they give.
func (p *parser) block(s *scope, _ bool, show bool) []any {
	var out []any
	for {
		p.blanks(true)
		if p.peek() == 0 {
			return out
		}
		for _, v := range p.statement(s) {
			if show {
				fmt.Println(v)
			} else {
				out = append(out, v)
			}
		}
	}
}

func run(text string, s *scope) []any { return (&parser{[]rune(text), 0}).block(s, false, false) }
func show(text string, s *scope)      { (&parser{[]rune(text), 0}).block(s, false, true) }

func (p *parser) statement(s *scope) []any {
	switch k := p.keyword(); k {
	case "if":
		p.at += 2
		p.blanks(false)
		condition := truth(expression(p.enclosed(), s))
		p.blanks(true)
		body := p.enclosed()
		if condition {
			show(body, s)
		}
		return nil
	case "foreach":
		p.at += len(k)
		p.blanks(false)
		head := p.enclosed()
		p.blanks(true)
		body := p.enclosed()
		name, rest, _ := strings.Cut(strings.TrimSpace(head), " ")
		_, bounds, _ := strings.Cut(rest, "in ")
		from, to, _ := strings.Cut(strings.TrimSpace(bounds), "..")
		a, _ := strconv.ParseInt(from, 10, 64)
		b, _ := strconv.ParseInt(to, 10, 64)
		inner := &scope{s.vars}
		for i := a; i <= b; i++ {
			inner.vars[strings.ToLower(name)] = i
			show(body, inner)
		}
		return nil
	case "throw":
		p.at += 5
		panic(thrown{fmt.Sprint(expression(p.rest(), s))})
	case "exit":
		p.at += 4
		code, _ := strconv.Atoi(strings.TrimSpace(p.rest()))
		panic(exited{code})
	}
	if p.peek() == '&' {
		p.at++
		p.blanks(false)
		if p.peek() == '{' {
			show(p.enclosed(), s)
			return nil
		}
	}
	line := p.rest()
	if name, value, ok := strings.Cut(line, "="); ok && strings.HasPrefix(name, "$") && !strings.Contains(name, " -") {
		name = strings.ToLower(strings.TrimSpace(name))
		s.vars[name] = expression(value, s)
		return nil
	}
	for _, piece := range pipes(line) {
		if v := command(piece, s); v != nil {
			return v
		}
	}
	return nil
}

// rest is the statement to its end.
func (p *parser) rest() string {
	begin := p.at
	for p.at < len(p.text) {
		switch c := p.peek(); c {
		case '(', '{':
			p.enclosed()
			continue
		case '\'', '"':
			p.at++
			for p.at < len(p.text) && p.peek() != c {
				p.at++
			}
		case ';', '\n':
			return strings.TrimSpace(string(p.text[begin:p.at]))
		}
		p.at++
	}
	return strings.TrimSpace(string(p.text[begin:]))
}

func pipes(line string) []string {
	var out []string
	p := &parser{[]rune(line), 0}
	begin := 0
	for p.at < len(p.text) {
		switch p.peek() {
		case '(', '{':
			p.enclosed()
			continue
		case '|':
			out = append(out, string(p.text[begin:p.at]))
			begin = p.at + 1
		}
		p.at++
	}
	return append(out, string(p.text[begin:]))
}

func words(line string) []string {
	var out []string
	p := &parser{[]rune(line), 0}
	for {
		p.blanks(true)
		if p.peek() == 0 {
			return out
		}
		begin := p.at
		for p.at < len(p.text) && p.peek() != ' ' && p.peek() != '\t' {
			switch c := p.peek(); c {
			case '(', '{':
				p.enclosed()
				continue
			case '\'', '"':
				p.at++
				for p.at < len(p.text) && p.peek() != c {
					p.at++
				}
			}
			p.at++
		}
		out = append(out, string(p.text[begin:min(p.at, len(p.text))]))
	}
}

func truth(v any) bool { b, ok := v.(bool); return ok && b || !ok && v != nil && fmt.Sprint(v) != "" }

func expression(text string, s *scope) any {
	text = strings.TrimSpace(text)
	w := words(text)
	if len(w) == 0 {
		return nil
	}
	if strings.HasPrefix(strings.ToLower(w[0]), "-not") {
		return !truth(expression(text[4:], s))
	}
	if len(w) >= 3 {
		a, b := value(w[0], s), value(strings.Join(w[2:], " "), s)
		switch strings.ToLower(w[1]) {
		case "-eq", "-ieq":
			return strings.EqualFold(fmt.Sprint(a), fmt.Sprint(b))
		case "-ne", "-ine":
			return !strings.EqualFold(fmt.Sprint(a), fmt.Sprint(b))
		}
	}
	if strings.HasPrefix(text, "(") && len(w) == 1 {
		return expression((&parser{[]rune(text), 0}).enclosed(), s)
	}
	if len(w) == 1 && (strings.ContainsAny(w[0][:1], `$'"`) || w[0][0] >= '0' && w[0][0] <= '9') {
		return value(w[0], s)
	}
	v := command(text, s)
	if len(v) == 1 {
		return v[0]
	}
	return fmt.Sprint(v...)
}

func value(word string, s *scope) any {
	word = strings.TrimSpace(word)
	if strings.HasPrefix(word, "'") {
		return strings.Trim(word, "'")
	}
	if strings.HasPrefix(word, `"$(`) {
		return expression(strings.TrimSuffix(strings.TrimPrefix(word, `"$(`), `)"`), s)
	}
	quoted := strings.Trim(word, `"`)
	if strings.HasPrefix(word, "$") && !strings.HasPrefix(strings.ToLower(word), "$env:") {
		if strings.ContainsAny(word, "*+") {
			return product(word, s)
		}
		return s.vars[strings.ToLower(word)]
	}
	return expand(quoted)
}

func product(word string, s *scope) any {
	n := int64(1)
	for _, f := range strings.Split(word, "*") {
		if strings.HasPrefix(f, "$") {
			v, _ := s.vars[strings.ToLower(f)].(int64)
			n *= v
		} else {
			v, _ := strconv.ParseInt(f, 10, 64)
			n *= v
		}
	}
	return n
}

func expand(text string) string {
	lower := strings.ToLower(text)
	for at := strings.Index(lower, "$env:"); at >= 0; at = strings.Index(lower, "$env:") {
		end := at + 5
		for end < len(text) && (text[end] == '_' || text[end] >= '0' && text[end] <= '9' || text[end]|32 >= 'a' && text[end]|32 <= 'z') {
			end++
		}
		text = text[:at] + os.Getenv(text[at+5:end]) + text[end:]
		lower = strings.ToLower(text)
	}
	return text
}

func command(line string, s *scope) []any {
	w := words(line)
	if len(w) == 0 {
		return nil
	}
	if strings.ContainsAny(w[0][:1], `$'"(`) {
		return []any{expression(line, s)}
	}
	if strings.HasPrefix(w[0], "[Environment]::SetEnvironmentVariable") {
		return nil
	}
	name := strings.ToLower(w[0])
	if at := strings.Index(name, "("); at > 0 {
		w = append([]string{w[0][:at], w[0][at:]}, w[1:]...)
		name = name[:at]
	}
	var arg []string
	option := map[string]string{}
	for i := 1; i < len(w); i++ {
		if strings.HasPrefix(w[i], "-") && i+1 < len(w) {
			option[strings.ToLower(w[i])] = w[i+1]
			i++
		} else {
			arg = append(arg, w[i])
		}
	}
	path := func() string {
		if p, ok := option["-path"]; ok {
			return fmt.Sprint(value(p, s))
		}
		if len(arg) == 0 {
			fail("%s has no path", name)
		}
		return fmt.Sprint(value(strings.Trim(arg[0], "()"), s))
	}
	switch name {
	case "sleep", "start-sleep":
		n := option["-seconds"]
		if n == "" && len(arg) > 0 {
			n = arg[0]
		}
		seconds, _ := strconv.Atoi(n)
		time.Sleep(time.Duration(seconds) * time.Second)
		return nil
	case "write-host", "write-output", "echo":
		for _, a := range arg {
			fmt.Println(value(a, s))
		}
		return nil
	case "test-path":
		_, err := os.Stat(path())
		return []any{err == nil}
	case "get-content", "cat", "type":
		data, err := os.ReadFile(path())
		if err != nil {
			panic(thrown{err.Error()})
		}
		return []any{strings.TrimRight(string(data), "\r\n")}
	case "set-content":
		v := option["-v"] + option["-value"]
		if err := os.WriteFile(path(), []byte(fmt.Sprint(value(v, s))+"\r\n"), 0o644); err != nil {
			panic(thrown{err.Error()})
		}
		return nil
	case "ls", "dir", "get-childitem":
		info, err := os.Stat(path())
		if err != nil {
			panic(thrown{err.Error()})
		}
		return []any{info.Name()}
	case "start-job":
		body := (&parser{[]rune(w[len(w)-1]), 0}).enclosed()
		jobs.Add(1)
		go func() {
			defer jobs.Done()
			show(body, &scope{map[string]any{}})
		}()
		return nil
	case "get-job", "wait-job":
		jobs.Wait()
		return nil
	case "get-wmiobject":
		return []any{"object"}
	case "hostname":
		h, _ := os.Hostname()
		return []any{h}
	}
	program := fmt.Sprint(value(w[0], s))
	rest := []string{}
	for _, a := range w[1:] {
		rest = append(rest, fmt.Sprint(value(a, s)))
	}
	c := exec.Command(program, rest...)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	if err := c.Run(); err != nil {
		panic(thrown{err.Error()})
	}
	return nil
}
