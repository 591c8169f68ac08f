package mcp

import (
	"io"

	"github.com/scopefs/scopefs/tools"
)

// tallied is a request's body whose Read fails when the body has more values than
// tools.Tally allows.
type tallied struct {
	io.ReadCloser
	tally tools.Tally
}

func (b *tallied) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if many := b.tally.Add(p[:n]); many != nil {
		return 0, many
	}
	return n, err
}
