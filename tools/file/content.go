package file

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"syscall"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/tools"
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
	switch mime := http.DetectContentType(b); mime {
	case "image/png", "image/jpeg", "image/gif", "image/webp":
		return mime
	}
	return ""
}

// mediaType returns the MIME type of any content, without parameters.
func mediaType(b []byte) string {
	mime, _, _ := strings.Cut(http.DetectContentType(b), ";")
	return mime
}

// notText returns the error of a content that is neither text nor an image.
func notText(p place, size int64, head []byte) error {
	e := tools.Errorf(tools.Invalid, "binary file, %d bytes, %s", size, mediaType(head))
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
func (t *tree) whole(p place, why intent) ([]byte, error) {
	f, st, err := t.open(p, os.O_RDONLY, why)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, ok, err := slurp(f, st.Size)
	if err == nil && !ok {
		e := tools.Errorf(tools.TooLarge, "file larger than %d bytes", maxWhole)
		e.Path = p.rel
		return nil, e
	}
	if err != nil {
		return nil, t.fail(p, err, why)
	}
	return b, nil
}

const opHash = "hash"

type hashArgs struct {
	Path string `json:"path"`
	Tree bool   `json:"tree,omitempty"` // the tool writes: hash a directory, too
	Name bool   `json:"name,omitempty"` // of a link, the object is the link
}

type hashResult struct {
	Hash string `json:"hash"`
	Path string `json:"path"`
	ID   string `json:"id"`
}

// hash finds the object at a path, and hashes a file of any size.
func (t *tree) hash(ctx context.Context, in hashArgs) (hashResult, error) {
	p, err := t.at(in.Path, reading)
	if err != nil {
		return hashResult{}, nil
	}
	why := reading
	if in.Tree {
		why = writing
	}
	o, err := t.object(p, !in.Name, why)
	if err != nil {
		return hashResult{}, err
	}
	if o.ID != "" { // hash the object that was found, even if the name has changed
		if p, err = t.hold(in.Path, p.rel, o); err != nil {
			return hashResult{}, err
		}
	}
	r, err := t.hashOf(ctx, p, in.Tree)
	r.Path, r.ID = o.Path, o.ID
	return r, err
}

// hashOf hashes a file, and with tree a directory. It returns "" for a name that does not
// exist and for any other type.
func (t *tree) hashOf(ctx context.Context, p place, tree bool) (hashResult, error) {
	f, _, err := t.open(p, os.O_RDONLY, reading)
	if errors.Is(err, unix.EISDIR) && tree {
		return t.hashTree(ctx, p)
	}
	if isCode(err, tools.NotFound) || isCode(err, tools.Invalid) {
		return hashResult{}, nil
	}
	if err != nil {
		return hashResult{}, err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, until(ctx, f)); err != nil {
		return hashResult{}, t.fail(p, err, reading)
	}
	return hashResult{Hash: "sha256:" + hex.EncodeToString(sum.Sum(nil))}, nil
}

// maxHashed bounds the names in a directory that an approval can cover.
const maxHashed = 50_000

// hashTree hashes the names, modes, inode numbers, sizes and ctimes below a directory.
// Users cannot set a ctime (inode(7)).
func (t *tree) hashTree(ctx context.Context, p place) (hashResult, error) {
	sum := sha256.New()
	n := 0
	w := walker{ctx: ctx, git: true, strict: true, visit: func(_ place, below string, d fs.DirEntry) error {
		if n++; n > maxHashed {
			e := tools.Errorf(tools.TooLarge, "more than %d files: a call about so many cannot be approved", maxHashed)
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
		if _, ok := errors.AsType[*tools.Error](err); ok {
			return hashResult{}, err
		}
		return hashResult{}, t.fail(p, err, reading)
	}
	return hashResult{Hash: "tree:" + hex.EncodeToString(sum.Sum(nil))}, nil
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
