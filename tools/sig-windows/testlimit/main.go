// testlimit.exe of the test images: commits and touches memory. -d SIZE per chunk, -e SECONDS between chunks, -c COUNT.
package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

var keep [][]byte

func main() {
	size, every, count := 1<<20, 1, 1
	for i := 1; i+1 < len(os.Args); i++ {
		v, _ := strconv.Atoi(strings.TrimRight(os.Args[i+1], "MmBb"))
		switch os.Args[i] {
		case "-d":
			size = v << 20
		case "-e":
			every = v
		case "-c":
			count = v
		}
	}
	for i := 0; i < count; i++ {
		b := make([]byte, size)
		for j := 0; j < len(b); j += 4096 {
			b[j] = 1
		}
		keep = append(keep, b)
		fmt.Println("leaked", (i+1)*(size>>20), "MB")
		time.Sleep(time.Duration(every) * time.Second)
	}
	time.Sleep(20000 * time.Second)
}
