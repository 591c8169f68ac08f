package tree

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/tools/file/message"
)

const (
	maxWhole = 8 << 20 // bytes of a file that is read, hashed and edited as a whole
	sniffed  = 8 << 10 // bytes by which text is distinguished from binary
	bom      = "\ufeff"
)

// hashOf returns the hash of a content, in the form of results and of if_match.
func hashOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// isText reports whether the beginning of a content is text: UTF-8 without NUL. The last
// rune may be cut.
func isText(b []byte) bool {
	cut := len(b) >= sniffed
	b = b[:min(len(b), sniffed)]
	if bytes.IndexByte(b, 0) >= 0 {
		return false
	}
	for i := 0; cut && i < utf8.UTFMax && len(b) > 0; i++ {
		if r, size := utf8.DecodeLastRune(b); r != utf8.RuneError || size != 1 {
			break
		}
		b = b[:len(b)-1]
	}
	return utf8.Valid(b)
}

// imageType returns the MIME type of an image in a form that models accept, or "".
func imageType(b []byte) string {
	switch mime := mediaType(b); mime {
	case "image/png", "image/jpeg", "image/gif", "image/webp":
		return mime
	}
	return ""
}

// notText returns the error of a content that is neither text nor an image.
func notText(p place, size int64, head []byte) error {
	e := message.Errorf(message.Invalid, "binary file, %d bytes, %s", size, mediaType(head))
	e.Path, e.Hint = p.rel, "it cannot be shown as text; use a program that reads it"
	return e
}

// slurp reads a file to its end. ok is false if it has more than maxWhole bytes.
func slurp(f *os.File, size int64) (b []byte, ok bool, err error) {
	if size > maxWhole {
		return nil, false, nil
	}
	b = make([]byte, 0, size+512) // room beyond the end, so that a read returns EOF
	for {
		n, err := f.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		switch {
		case err == io.EOF:
			return b, true, nil
		case err != nil:
			return nil, false, err
		case len(b) > maxWhole:
			return nil, false, nil
		case len(b) == cap(b):
			b = append(b, 0)[:len(b)]
		}
	}
}

// whole reads a regular file of at most maxWhole bytes.
func (t *tree) whole(p place, why message.Intent) ([]byte, error) {
	f, st, err := t.open(p, os.O_RDONLY, why)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, ok, err := slurp(f, st.Size)
	if err == nil && !ok {
		e := message.Errorf(message.TooLarge, "file larger than %d bytes", maxWhole)
		e.Path = p.rel
		return nil, e
	}
	if err != nil {
		return nil, t.fail(p, err, why)
	}
	return b, nil
}

// hash finds the object at a path, and hashes a file of any size.
func (t *tree) hash(ctx context.Context, in message.HashArgs) (message.HashResult, error) {
	p, err := t.at(in.Path, message.Reading)
	if err != nil {
		return message.HashResult{}, nil
	}
	why := message.Reading
	if in.Tree {
		why = message.Writing
	}
	o, err := t.object(p, !in.Name, why)
	if err != nil {
		return message.HashResult{}, err
	}
	if o.ID != "" { // hash the object that was found, even if the name has changed
		if p, err = t.hold(in.Path, p.rel, o); err != nil {
			return message.HashResult{}, err
		}
	}
	r, err := t.hashOf(ctx, p, in.Tree)
	r.Path, r.ID = o.Path, o.ID
	return r, err
}

// hashOf hashes a file, and with tree a directory. It returns "" for a name that does not
// exist and for any other type.
func (t *tree) hashOf(ctx context.Context, p place, tree bool) (message.HashResult, error) {
	f, _, err := t.open(p, os.O_RDONLY, message.Reading)
	if errors.Is(err, unix.EISDIR) && tree {
		return t.hashTree(ctx, p)
	}
	if isCode(err, message.NotFound) || isCode(err, message.Invalid) {
		return message.HashResult{}, nil
	}
	if err != nil {
		return message.HashResult{}, err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, until(ctx, f)); err != nil {
		return message.HashResult{}, t.fail(p, err, message.Reading)
	}
	return message.HashResult{Hash: "sha256:" + hex.EncodeToString(sum.Sum(nil))}, nil
}

// maxHashed bounds the names in a directory that an approval can cover.
const maxHashed = 50_000

// hashTree hashes the names, modes, inode numbers, sizes and ctimes below a directory.
// Users cannot set a ctime (inode(7)).
func (t *tree) hashTree(ctx context.Context, p place) (message.HashResult, error) {
	sum := sha256.New()
	n := 0
	w := walker{ctx: ctx, git: true, strict: true, visit: func(_ place, below string, d fs.DirEntry) error {
		if n++; n > maxHashed {
			e := message.Errorf(message.TooLarge, "more than %d files: a call about so many cannot be approved", maxHashed)
			e.Path = p.rel
			return e
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return errors.New("no stat")
		}
		fmt.Fprintf(sum, "%q %v %d %d %d.%d\n", below, info.Mode(), st.Ino, st.Size, st.Ctim.Sec, st.Ctim.Nsec)
		return nil
	}}
	if err := w.walk(p, "", 1); err != nil {
		if _, ok := errors.AsType[*message.Error](err); ok {
			return message.HashResult{}, err
		}
		return message.HashResult{}, t.fail(p, err, message.Reading)
	}
	return message.HashResult{Hash: "tree:" + hex.EncodeToString(sum.Sum(nil))}, nil
}

// until reads from r until ctx ends.
func until(ctx context.Context, r io.Reader) io.Reader { return reader{ctx, r} }

type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(b)
}
