// Package foreign is the program scopefs-yaml: it parses the YAML of a repository, which an agent may have written, in a process
// without rights. Package config starts it.
package foreign

import (
	"fmt"
	"io"
	"os"

	"github.com/scopefs/scopefs/internal/confine"
	"github.com/scopefs/scopefs/internal/frontmatter"
)

// memory bounds the data of the process, in bytes. A hostile text of [frontmatter.MaxKeys] bytes takes a tenth of it.
const memory = 256 << 20

// Main parses the text on the standard input, and writes its canonical form: see [frontmatter.Form]. It returns the exit status.
func Main() int {
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// limit leaves this process its open descriptors, and the system calls of the Go runtime for them.
func limit() error { return confine.Descriptors(memory, nil) }

func serve(in io.Reader, out io.Writer) error {
	if err := limit(); err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(in, frontmatter.MaxKeys))
	if err != nil {
		return err
	}
	_, err = out.Write(frontmatter.Form(frontmatter.Parse(text)))
	return err
}
