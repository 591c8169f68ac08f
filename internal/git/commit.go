package git

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The limits of what is read of a repository.
const (
	maxCommit  = 1 << 20
	maxTree    = 4 << 20
	maxHistory = 100_000   // commits
	maxAlloc   = 256 << 20 // bytes that git allocates at once: a small object may be the difference from a large one
)

// Commit is a commit of a repository that may be hostile. All objects are read from a directory of objects, by a bare
// repository of our own: the other one's configuration, attributes, hooks and replacements count for nothing. The name of each object is
// computed from what was read. The methods are called one after the other.
type Commit struct {
	ID   string
	tree string
	env  []string
	temp string // the directory of our repository

	reads *exec.Cmd // git cat-file --batch
	in    io.WriteCloser
	out   *bufio.Reader
}

// Open returns the commit that a ref names in the repository of a directory. Discard ends its processes, as ctx does.
func Open(ctx context.Context, dir, ref string) (opened *Commit, err error) {
	if strings.HasPrefix(ref, "-") || ref == "" {
		return nil, fmt.Errorf("%q is no name of a commit", ref)
	}
	c := &Commit{env: own()}
	if c.temp, err = os.MkdirTemp("", "scopefs-git-*"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = c.Discard() // err says why
		}
	}()
	ask := func(words ...string) (string, error) {
		cmd := Command(ctx, append(slices.Clone(c.env), "GIT_ALLOW_PROTOCOL="), append([]string{"rev-parse"}, words...)...)
		var out bytes.Buffer
		cmd.Dir, cmd.Stdout = dir, &out
		err := Run(cmd)
		return strings.TrimSuffix(out.String(), "\n"), err
	}
	objects, err := ask("--path-format=absolute", "--git-path", "objects")
	if err != nil {
		return nil, err
	}
	if c.ID, err = ask("--verify", ref+"^{commit}"); err != nil {
		return nil, err
	}
	format := "sha1"
	if len(c.ID) == 2*sha256.Size {
		format = "sha256"
	}
	if err := Run(Command(ctx, c.env, "init", "--quiet", "--bare", "--template=", "--object-format="+format, c.temp)); err != nil {
		return nil, err
	}
	c.env = append(c.env, "GIT_DIR="+c.temp, "GIT_OBJECT_DIRECTORY="+objects, fmt.Sprint("GIT_ALLOC_LIMIT=", maxAlloc))
	c.reads = c.command(ctx, "cat-file", "--batch")
	if c.in, err = c.reads.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.reads.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewReader(out)
	if err := c.reads.Start(); err != nil {
		c.reads = nil
		return nil, err
	}
	c.tree, _, err = c.commit(c.ID)
	return c, err
}

// own returns the variables of this process without those of git, but where its own configuration is.
func own() []string {
	return slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return strings.HasPrefix(variable, "GIT_") && !strings.HasPrefix(variable, "GIT_CONFIG")
	})
}

func (c *Commit) command(ctx context.Context, words ...string) *exec.Cmd {
	cmd := Command(ctx, c.env, words...)
	cmd.Dir = c.temp
	return cmd
}

// Discard ends the processes, and removes our repository.
func (c *Commit) Discard() error {
	if c.reads != nil {
		_ = c.reads.Process.Kill() // it may have ended
		_ = c.reads.Wait()
	}
	return os.RemoveAll(c.temp)
}

// ErrMissing reports an object that the repository lacks.
var ErrMissing = errors.New("the repository lacks it")

// read returns an object of a kind and a size of at most so many bytes.
func (c *Commit) read(id, kind string, most int) (text []byte, err error) {
	fail := func(err error) ([]byte, error) { return nil, fmt.Errorf("%s %.12s: %w", kind, id, err) }
	if c.reads == nil {
		return fail(errors.New("git has ended"))
	}
	if _, err = io.WriteString(c.in, id+"\n"); err != nil {
		return fail(c.ended(err))
	}
	line, err := c.out.ReadSlice('\n')
	said := strings.Fields(string(line))
	switch {
	case err != nil:
		return fail(c.ended(err))
	case len(said) == 2 && said[1] == "missing":
		return fail(ErrMissing)
	case len(said) != 3 || said[0] != id || said[1] != kind:
		return fail(fmt.Errorf("is another object: %.100q", line))
	}
	size, err := strconv.ParseUint(said[2], 10, 63)
	if err != nil || size > uint64(most) {
		return fail(fmt.Errorf("is larger than %d bytes", most))
	}
	text = make([]byte, size+1)
	if _, err := io.ReadFull(c.out, text); err != nil {
		return fail(c.ended(err))
	}
	sum := sha1.New()
	if len(id) == 2*sha256.Size {
		sum = sha256.New()
	}
	text = text[:size]
	fmt.Fprintf(sum, "%s %d\x00%s", kind, size, text)
	if hex.EncodeToString(sum.Sum(nil)) != id {
		return fail(errors.New("is not what its name says: the repository is damaged"))
	}
	return text, nil
}

// ended returns why git ended. No object can be read after it.
func (c *Commit) ended(err error) error {
	cmd := c.reads
	c.reads = nil
	_ = c.in.Close()
	if wrong := cmd.Wait(); wrong != nil {
		err = wrong
	}
	return Explain(cmd, err)
}

// commit returns the tree of a commit, and its parents. Both are the first lines of its text.
func (c *Commit) commit(id string) (tree string, parents []string, err error) {
	text, err := c.read(id, "commit", maxCommit)
	if err != nil {
		return "", nil, err
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if _, err := hex.DecodeString(value); err != nil || len(value) != len(id) {
			break
		}
		switch {
		case key == "tree" && tree == "":
			tree = value
			continue
		case key == "parent" && tree != "":
			parents = append(parents, value)
			continue
		}
		break
	}
	if tree == "" {
		return "", nil, fmt.Errorf("commit %.12s has no tree", id)
	}
	return tree, parents, nil
}

// Verify returns an error unless git-verify-commit(1) takes the commit's signature, by the configuration of the user and the system. A
// key of OpenPGP counts from full trust on, unless gpg.minTrustLevel there says another level. With a file of signers (ssh-keygen(1),
// ALLOWED SIGNERS) those alone count.
func (c *Commit) Verify(ctx context.Context, signers string) error {
	var level bytes.Buffer
	get := c.command(ctx, "config", "--default", "fully", "--get", "gpg.minTrustLevel")
	get.Stdout = &level
	if err := Run(get); err != nil {
		return err
	}
	words := []string{"-c", "gpg.minTrustLevel=" + strings.TrimSpace(level.String())}
	if signers != "" {
		words = append(words, "-c", "gpg.ssh.allowedSignersFile="+signers, "-c", "gpg.program=false", "-c", "gpg.openpgp.program=false", "-c", "gpg.x509.program=false")
	}
	if err := Run(c.command(ctx, append(words, "verify-commit", c.ID)...)); err != nil {
		return fmt.Errorf("commit %.12s has no signature that counts: %w", c.ID, err)
	}
	return nil
}

// Follows reports whether another commit is the commit itself, or in its history.
func (c *Commit) Follows(earlier string) (bool, error) {
	all, seen := []string{c.ID}, map[string]bool{c.ID: true}
	var lacks error // of a shallow clone
	for i := 0; i < len(all); i++ {
		if all[i] == earlier {
			return true, nil
		}
		if i == maxHistory {
			return false, fmt.Errorf("commit %.12s is not among the last %d of %.12s", earlier, maxHistory, c.ID)
		}
		_, parents, err := c.commit(all[i])
		if errors.Is(err, ErrMissing) {
			lacks = fmt.Errorf("%w: fetch the whole history", err)
			continue
		}
		if err != nil {
			return false, err
		}
		for _, parent := range parents {
			if !seen[parent] {
				seen[parent] = true
				all = append(all, parent)
			}
		}
	}
	return false, lacks
}

// File is a regular file of a directory.
type File struct {
	Name string
	Text []byte
}

// Limits bound the files of a directory.
type Limits struct {
	Files, Each, All int // files, bytes of one, bytes of all
}

// Files returns the files of a directory of the commit, by name. A name that begins with a dot is left out. What is no regular file
// is an error.
func (c *Commit) Files(dir string, limits Limits) (files []File, err error) {
	if !fs.ValidPath(dir) {
		return nil, fmt.Errorf("%q is no path of a directory inside the repository", dir)
	}
	id, at := c.tree, ""
	for part := range strings.SplitSeq(dir, "/") {
		if part == "." {
			break
		}
		at = filepath.Join(at, part)
		there, err := c.entries(id)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(there, func(e entry) bool { return e.name == part })
		if i < 0 || there[i].mode != "40000" {
			return nil, fmt.Errorf("commit %.12s has no directory %q", c.ID, at)
		}
		id = there[i].id
	}
	there, err := c.entries(id)
	if err != nil {
		return nil, err
	}
	there = slices.DeleteFunc(there, func(e entry) bool { return strings.HasPrefix(e.name, ".") })
	if len(there) > limits.Files {
		return nil, fmt.Errorf("%q has %d files: more than %d", dir, len(there), limits.Files)
	}
	for i, e := range there { // all before the first is read
		if e.mode != "100644" && e.mode != "100755" {
			return nil, fmt.Errorf("%q in %q is no regular file", e.name, dir)
		}
		if strings.ContainsAny(e.name, "/\x00") || slices.ContainsFunc(there[:i], func(other entry) bool { return other.name == e.name }) {
			return nil, fmt.Errorf("%q in %q is a name that git does not make, or twice there", e.name, dir)
		}
	}
	left := limits.All
	for _, e := range there {
		text, err := c.read(e.id, "blob", min(limits.Each, left))
		if err != nil {
			return nil, fmt.Errorf("%q in %q: %w", e.name, dir, err)
		}
		left -= len(text)
		files = append(files, File{e.name, text})
	}
	return files, nil
}

// entry is one of a tree.
type entry struct{ mode, name, id string }

// entries returns what is in a tree.
func (c *Commit) entries(id string) (all []entry, err error) {
	text, err := c.read(id, "tree", maxTree)
	for err == nil && len(text) > 0 {
		head, rest, ok := bytes.Cut(text, []byte{0})
		mode, name, named := strings.Cut(string(head), " ")
		if !ok || !named || len(rest) < len(id)/2 {
			return nil, fmt.Errorf("tree %.12s is damaged", id)
		}
		all = append(all, entry{mode, name, hex.EncodeToString(rest[:len(id)/2])})
		text = rest[len(id)/2:]
	}
	return all, err
}
