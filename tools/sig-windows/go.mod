module mullion.io/sig-windows

go 1.24
