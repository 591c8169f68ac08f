// Package bounded reads what may be longer than a caller takes.
package bounded

import (
	"errors"
	"fmt"
	"io"
	"os"
	"unicode/utf8"
)

// ErrTooLong is the error of a text with more bytes than the caller takes.
var ErrTooLong = errors.New("too long")

// Read reads r to its end. Of more than most bytes it returns the first, with an error that
// wraps [ErrTooLong] and says what to do.
func Read(r io.Reader, most int) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, int64(most)+1))
	if err == nil && len(text) > most {
		text, err = text[:most], longError(most)
	}
	return text, err
}

// File reads the file of a name that the operator gives, as Read does.
func File(name string, most int) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return Read(f, most)
}

// Writer keeps the first bytes that are written to it, and discards the others.
type Writer struct {
	Text []byte
	Left int // bytes that it still keeps
}

// Write keeps what there is room for. It reports no error: a program that writes more goes on.
func (w *Writer) Write(b []byte) (int, error) {
	n := min(len(b), w.Left)
	w.Text, w.Left = append(w.Text, b[:n]...), w.Left-n
	return len(b), nil
}

// Whole removes the beginning of a character that was cut off at the end.
func Whole(text []byte) []byte {
	for i := len(text) - 1; i >= max(0, len(text)-utf8.UTFMax); i-- {
		if utf8.RuneStart(text[i]) {
			if !utf8.FullRune(text[i:]) {
				return text[:i]
			}
			break
		}
	}
	return text
}

// longError is ErrTooLong with the bound, in bytes.
type longError int

func (e longError) Error() string   { return fmt.Sprintf("is larger than %d bytes: shorten it", int(e)) }
func (longError) Is(err error) bool { return err == ErrTooLong }
