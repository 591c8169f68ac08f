package anchor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/bounded"
)

// The references of the private repository. Their commits have the head as the file head and in their messages.
const (
	refKept = "refs/heads/kept" // the last commit that the remote has, as far as is known
	refNext = "refs/heads/next" // a commit that was pushed, and perhaps has arrived
)

// maxFetched limits what is taken of a remote, one commit with a head, in bytes.
const maxFetched = 1 << 20

// toGit pushes one commit with the head to a branch of a remote, which must be where the last push has left it: then whoever can
// only push without force cannot remove a head. The commits are made in a repository of {state}.
func toGit(ctx context.Context, r Request) error {
	var err error
	if r.Git, err = elsewhere(r); err != nil {
		return err
	}
	g := &repository{ctx: ctx, r: r, dir: filepath.Join(r.State, "anchors", r.Name+".git")}
	if err := g.open(); err != nil {
		return err
	}
	branch := "refs/heads/" + cmp.Or(r.Branch, r.Origin)
	there, err := g.remote(branch)
	if err != nil {
		return err
	}
	kept := g.commit(refKept)
	switch next := g.commit(refNext); {
	case kept == "" && there != "": // a branch from before, or {state} was lost: it grows from there
		if err := g.fetch(branch); err != nil {
			return err
		}
	case there != "" && there == next: // the process was killed after the push
		if err := g.run(nil, nil, "update-ref", refKept, next); err != nil {
			return err
		}
	case there != kept:
		return fmt.Errorf("%w: branch %s was left at %.12s and is now at %.12s: if that was you, remove %s", ErrFork,
			branch, kept, cmp.Or(there, "nothing"), g.dir)
	}
	next, err := g.write()
	if err != nil {
		return err
	}
	lease := "--force-with-lease=" + branch + ":" + there // another one may push meanwhile
	if err := g.run(nil, nil, "push", "--quiet", "--no-verify", lease, r.Git, next+":"+branch); err != nil {
		return err
	}
	if err := g.run(nil, nil, "update-ref", refKept, next); err != nil {
		return err
	}
	return g.run(nil, nil, "gc", "--auto", "--quiet")
}

// elsewhere returns the address of the remote. git executes the hooks of a repository on this host: an agent must not be able
// to write there, or to lead the path elsewhere.
func elsewhere(r Request) (string, error) {
	u, err := url.Parse(r.Git)
	if err != nil || u.Scheme != "file" {
		return r.Git, nil // USER@HOST:PATH is no URL
	}
	at, err := openDir(u.Path)
	if err != nil {
		return "", err
	}
	defer unix.Close(at)
	u.Path, err = outside(at, r.Private)
	if err != nil {
		return "", fmt.Errorf("%s: %w", r.Git, err)
	}
	return (&url.URL{Scheme: "file", Path: u.Path}).String(), nil
}

// repository is the private one of an anchor.
type repository struct {
	ctx context.Context
	r   Request
	dir string
}

// open makes the repository if there is none, and removes the locks of a git that was killed: only this process works in it.
func (g *repository) open() error {
	if err := os.MkdirAll(g.dir, 0o700); err != nil {
		return err
	}
	if err := g.run(nil, nil, "init", "--quiet", "--bare", "--template=", g.dir); err != nil {
		return err
	}
	return filepath.WalkDir(g.dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case entry.IsDir() && entry.Name() == "objects":
			return fs.SkipDir
		case strings.HasSuffix(path, ".lock"):
			return os.Remove(path)
		}
		return nil
	})
}

// remote returns the commit of a branch of the remote; "" for none.
func (g *repository) remote(branch string) (string, error) {
	var out bytes.Buffer
	if err := g.run(nil, &out, "ls-remote", "--quiet", g.r.Git, branch); err != nil {
		return "", err
	}
	for line := range strings.Lines(out.String()) {
		if commit, name, _ := strings.Cut(strings.TrimSpace(line), "\t"); name == branch {
			return commit, nil
		}
	}
	return "", nil
}

// fetch gets the commit of a branch of the remote as refKept. A remote cannot fill the disk of the log.
func (g *repository) fetch(branch string) error {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
		return err
	}
	limit := before
	limit.Cur = min(limit.Cur, maxFetched)
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &limit); err != nil { // of the processes that begin now
		return err
	}
	err := g.run(nil, nil, "fetch", "--quiet", "--no-tags", "--depth=1", g.r.Git, "+"+branch+":"+refKept)
	if err != nil {
		packs := filepath.Join(g.dir, "objects/pack")
		parts, _ := os.ReadDir(packs)
		for _, part := range parts {
			if strings.HasPrefix(part.Name(), "tmp_") {
				err = errors.Join(err, os.Remove(filepath.Join(packs, part.Name())))
			}
		}
	}
	return errors.Join(err, unix.Setrlimit(unix.RLIMIT_FSIZE, &before))
}

// commit returns the commit of a reference; "" for none.
func (g *repository) commit(ref string) string {
	var out bytes.Buffer
	if g.run(nil, &out, "rev-parse", "--verify", "--quiet", ref) != nil {
		return ""
	}
	return strings.TrimSpace(out.String())
}

// write makes the commit, and returns it.
func (g *repository) write() (string, error) {
	var blob, tree, commit bytes.Buffer
	if err := g.run(g.r.Head, &blob, "hash-object", "-w", "--stdin"); err != nil {
		return "", err
	}
	if err := g.run([]byte("100644 blob "+strings.TrimSpace(blob.String())+"\thead\n"), &tree, "mktree"); err != nil {
		return "", err
	}
	words := []string{"commit-tree", strings.TrimSpace(tree.String())}
	if kept := g.commit(refKept); kept != "" {
		words = append(words, "-p", kept)
	}
	message := fmt.Sprintf("head of %d lines of %s\n\n%s", g.r.Size, g.r.Origin, g.r.Head)
	if err := g.run([]byte(message), &commit, words...); err != nil {
		return "", err
	}
	next := strings.TrimSpace(commit.String())
	return next, g.run(nil, nil, "update-ref", refNext, next)
}

// settings are those of each git. No file of settings, template or hook is read, and no helper asked.
var settings = []string{
	"-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "gc.autoDetach=false", "-c",
	"fetch.unpackLimit=1", "-c", "credential.helper=",
	"-c", "http.followRedirects=false", "-c", "protocol.allow=never", "-c", "protocol.ssh.allow=always", "-c", "protocol.https.allow=always",
	"-c", "protocol.http.allow=always", "-c", "protocol.file.allow=always", "-c", "commit.gpgSign=false", "-c", "push.gpgSign=false",
}

func (g *repository) run(in []byte, out *bytes.Buffer, words ...string) error {
	cmd := exec.CommandContext(g.ctx, "git", append(settings[:len(settings):len(settings)], words...)...)
	cmd.Dir, cmd.Env = g.dir, g.environment()
	cmd.Stdin = bytes.NewReader(in)
	if out != nil {
		cmd.Stdout = out
	}
	why := bounded.Writer{Left: maxSaid}
	cmd.Stderr = &why
	err := cmd.Run()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return errors.New("git is not installed: install it")
	case g.ctx.Err() != nil:
		return fmt.Errorf("git %s: %s does not answer", words[0], g.r.Git)
	case err != nil:
		return fmt.Errorf("git %s: %w: %s", words[0], err, bytes.TrimSpace(why.Text))
	}
	return nil
}

// environment is that of the daemon without what changes git.
func (g *repository) environment() []string {
	env := []string{
		"GIT_DIR=" + g.dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_ATTR_NOSYSTEM=1",
		"GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=/bin/false", "SSH_ASKPASS=/bin/false", "LC_ALL=C.UTF-8",
		"GIT_SSH_COMMAND=ssh -oBatchMode=yes -oConnectTimeout=10 -oClearAllForwardings=yes", "GIT_SSH_VARIANT=ssh",
		"GIT_AUTHOR_NAME=scopefs", "GIT_AUTHOR_EMAIL=scopefs@" + cmp.Or(g.r.Host, "localhost"),
		"GIT_COMMITTER_NAME=scopefs", "GIT_COMMITTER_EMAIL=scopefs@" + cmp.Or(g.r.Host, "localhost"),
	}
	for _, name := range []string{"PATH", "HOME", "USER", "SSH_AUTH_SOCK", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	if g.r.Secret != "" { // by the environment, which other users cannot read
		login := base64.StdEncoding.EncodeToString([]byte(cmp.Or(g.r.User, "git") + ":" + g.r.Secret))
		env = append(env, "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=http."+g.r.Git+".extraHeader", "GIT_CONFIG_VALUE_0=Authorization: Basic "+login)
	}
	return env
}
