package export

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/scopefs/scopefs/audit"
)

// Filter reads lines of the log and writes them in the format that words name, with the version of scopefs. It ends with
// the lines: a signal of the terminal ends the program that writes them.
func Filter(words []string, in io.Reader, out io.Writer) error {
	if len(words) != 2 {
		return errors.New("scopefs audit export starts it")
	}
	signal.Ignore(os.Interrupt)
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	lines, text := bufio.NewReaderSize(in, 64<<10), bufio.NewWriterSize(out, 64<<10)
	w, err := New(words[0], text, Source{Host: host, Version: words[1]})
	if err != nil {
		return err
	}
	flush := func() error { return cmp.Or(w.Flush(), text.Flush()) }
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) == 0 {
			if err == io.EOF {
				err = nil
			}
			return cmp.Or(err, flush())
		}
		e := audit.Event{Raw: bytes.TrimSuffix(line, []byte("\n"))}
		if err := json.Unmarshal(e.Raw, &e); err != nil {
			return fmt.Errorf("a line is no event: %w", err)
		}
		if err := w.Write(e); err != nil {
			return err
		}
		if lines.Buffered() == 0 { // nothing more is there now: a follower sees what came
			if err := flush(); err != nil {
				return err
			}
		}
	}
}
