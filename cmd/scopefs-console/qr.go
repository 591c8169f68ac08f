package main

import (
	"strings"

	"rsc.io/qr"
)

// border is the quiet zone of a QR code, in modules: ISO/IEC 18004 wants four, and readers do with two.
const border = 2

// lines returns the QR code of a text in half blocks: a character has two modules, one above the other. A reader needs dark
// modules on a light ground, so the text names both colours.
func lines(text string) (string, error) {
	code, err := qr.Encode(text, qr.L)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for y := -border; y < code.Size+border; y += 2 {
		b.WriteString("\x1b[30;107m")
		for x := -border; x < code.Size+border; x++ {
			b.WriteString([]string{" ", "▀", "▄", "█"}[one(code.Black(x, y))+2*one(code.Black(x, y+1) && y+1 < code.Size+border)])
		}
		b.WriteString("\x1b[0m\n")
	}
	return b.String(), nil
}

func one(black bool) int {
	if black {
		return 1
	}
	return 0
}
