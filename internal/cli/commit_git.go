package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/scopefs/scopefs/audit/event"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/scope"
)

// The bounds of the commits that a bundle brings.
const (
	maxBundle = 4 << 30 // bytes
	maxKnown  = 1000    // branches of the host whose commits the bundle leaves out
	maxSaid   = 4096    // bytes of what git says
)

// gitBranch brings the commits of an agent to the repository of its directory, as a branch.
type gitBranch struct {
	kept
	name string
	dir  string
	as   *syscall.SysProcAttr // for git of the host: the owner of the directory, if this is root
}

// commitGit brings the commits of an agent's HEAD to the repository of its directory, as a branch, and returns how many. git in the
// sandbox writes them to a bundle, git-bundle(1), and git of the host reads only that: nothing of the host runs on the agent's
// repository, and HEAD, index and files of the directory stay as they are.
func (a *app) commitGit(ctx context.Context, k kept, name string) (commits int, err error) {
	if k.held {
		return 0, fmt.Errorf("commits of %s are in its directory already: its changes are not held", k.id)
	}
	g := &gitBranch{kept: k, name: name, dir: k.def.Definition.Path(k.paths.Base)}
	info, err := os.Stat(g.dir)
	if err != nil {
		return 0, err
	}
	top, err := os.MkdirTemp("", "scopefs-git-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(top)
	if st := info.Sys().(*syscall.Stat_t); os.Geteuid() == 0 && st.Uid != 0 {
		g.as = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: st.Uid, Gid: st.Gid}}
		if err := os.Chown(top, int(st.Uid), int(st.Gid)); err != nil {
			return 0, err
		}
	}
	refs, err := g.host(ctx, "for-each-ref", "--count="+strconv.Itoa(maxKnown), "--format=%(objectname)", "refs/heads", "refs/remotes")
	if err != nil {
		return 0, fmt.Errorf("%s: %w", g.dir, err)
	}
	if _, err := g.host(ctx, "check-ref-format", "--branch", name); err != nil {
		return 0, exit.Usagef("--git: %q is no name of a branch", name)
	}
	known := strings.Fields(refs)
	bundle := filepath.Join(top, "bundle")
	if empty, err := g.bundle(ctx, bundle, known); err != nil || empty {
		return 0, err
	}
	if err = g.check(ctx, bundle, filepath.Join(top, "objects")); err == nil {
		err = g.fetch(ctx, bundle)
	}
	if err != nil {
		return 0, err
	}
	count, err := g.host(ctx, append([]string{"rev-list", "--count", "refs/heads/" + name, "--not"}, known...)...)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(count))
}

// host runs git of the host in the directory, without hooks, monitors and maintenance, and returns what it prints.
func (g *gitBranch) host(ctx context.Context, words ...string) (string, error) {
	return g.hostWith(ctx, nil, nil, words...)
}

// hostWith is host with variables and a standard input.
func (g *gitBranch) hostWith(ctx context.Context, in *os.File, env []string, words ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git",
		append([]string{"-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=", "-c", "fetch.fsckObjects=true"}, words...)...)
	cmd.Dir, cmd.SysProcAttr = g.dir, g.as
	if in != nil {
		cmd.Stdin = in
	}
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "GIT_TERMINAL_PROMPT=0", "GIT_NO_LAZY_FETCH=1"}
	if g.as == nil {
		cmd.Env = append(cmd.Env, "HOME="+os.Getenv("HOME"))
	}
	cmd.Env = append(cmd.Env, env...)
	var out strings.Builder
	said := &said{}
	cmd.Stdout, cmd.Stderr = &out, said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("git %s: %w", words[0], said.or(err))
	}
	return out.String(), nil
}

// bundle has git in the agent's sandbox write the commits of its HEAD that are not known. empty: there are none.
func (g *gitBranch) bundle(ctx context.Context, name string, known []string) (empty bool, err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return false, err
	}
	defer f.Close()
	if g.as != nil {
		if err := f.Chown(int(g.as.Credential.Uid), int(g.as.Credential.Gid)); err != nil {
			return false, err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	words := append([]string{"--base", g.paths.Base, "run"}, g.inside()...)
	words = append(words, "--", "git", "bundle", "create", "--quiet", "-", "HEAD", "--ignore-missing", "--not")
	cmd := exec.CommandContext(ctx, "/proc/self/exe", append(words, known...)...)
	cmd.Env = append(os.Environ(), "SCOPEFS_RUN="+g.paths.Run, "SCOPEFS_STATE="+g.paths.State)
	said := &said{}
	cmd.Stderr = said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return false, err
	}
	if err := cmd.Start(); err != nil {
		return false, err
	}
	n, err := io.Copy(f, io.LimitReader(out, maxBundle+1))
	if err == nil && n > maxBundle {
		err = fmt.Errorf("the commits have more than %d bytes", int64(maxBundle))
	}
	if err != nil {
		cancel()
	}
	if failed := cmd.Wait(); err == nil && failed != nil {
		if strings.Contains(said.String(), "empty bundle") {
			return true, nil
		}
		err = fmt.Errorf("git bundle, in the sandbox of %s: %w", g.id, said.or(failed))
	}
	return false, err
}

// inside returns the words by which a run is in the directory. It has one that was lent as it was lent.
func (g *gitBranch) inside() []string {
	if g.def.RootOf == "" {
		return []string{string(g.id)}
	}
	words := []string{"-C", g.dir}
	if g.def.Lent {
		with, view := g.dir+"/", g.def.View // the name itself may end like one of the words
		if view.Access == scope.Read || slices.Contains(view.Paths, scope.PathRule{Pattern: "**", Access: scope.Read}) {
			with += ":ro"
		}
		if view.Closed {
			with += ":ask"
		}
		words = append(words, "--with", with)
	}
	return append(words, string(g.def.RootOf))
}

// maxHeader bounds what is before the pack in a bundle, in bytes.
const maxHeader = 1 << 20

// check has git check each object of the bundle, in a directory of objects beside the repository. git before 2.46 does not when it
// fetches from a bundle, whatever fetch.fsckObjects says.
func (g *gitBranch) check(ctx context.Context, bundle, objects string) error {
	f, err := os.Open(bundle)
	if err != nil {
		return err
	}
	defer f.Close()
	header := make([]byte, maxHeader)
	n, err := io.ReadFull(f, header)
	if err != nil && err != io.ErrUnexpectedEOF {
		return err
	}
	end := bytes.Index(header[:n], []byte("\n\n")) // gitformat-bundle(5)
	if end < 0 {
		return fmt.Errorf("git in the sandbox of %s has written no bundle", g.id)
	}
	if _, err := f.Seek(int64(end+2), io.SeekStart); err != nil {
		return err
	}
	own, err := g.host(ctx, "rev-parse", "--path-format=absolute", "--git-path", "objects")
	if err == nil {
		err = os.MkdirAll(filepath.Join(objects, "pack"), 0o777)
	}
	if err == nil && g.as != nil {
		err = errors.Join(os.Chown(objects, int(g.as.Credential.Uid), -1), os.Chown(filepath.Join(objects, "pack"), int(g.as.Credential.Uid), -1))
	}
	if err != nil {
		return err
	}
	env := []string{"GIT_OBJECT_DIRECTORY=" + objects, "GIT_ALTERNATE_OBJECT_DIRECTORIES=" + strings.TrimSuffix(own, "\n")}
	if _, err = g.hostWith(ctx, f, env, "index-pack", "--stdin", "--fix-thin", "--strict"); err != nil {
		return fmt.Errorf("the commits of %s are refused: %w", g.id, err)
	}
	return nil
}

// fetch takes the bundle's commits as the branch, and moves an existing one forward only.
func (g *gitBranch) fetch(ctx context.Context, bundle string) error {
	_, err := g.host(ctx, "fetch", "--no-auto-maintenance", "--no-recurse-submodules", "--no-tags",
		"--no-write-fetch-head", bundle, "HEAD:refs/heads/"+g.name)
	if err != nil {
		return fmt.Errorf("the branch %q of %s stays as it is (another name may do): %w", g.name, g.dir, err)
	}
	return nil
}

// said keeps the first part of what a program says.
type said struct{ bytes.Buffer }

func (s *said) Write(p []byte) (int, error) {
	s.Buffer.Write(p[:min(len(p), maxSaid-s.Len())])
	return len(p), nil
}

// or returns what the program says as an error, or err if it says nothing. An agent may have written it.
func (s *said) or(err error) error {
	if text := strings.TrimSpace(s.String()); text != "" {
		return errors.New(event.Escape(strings.ReplaceAll(text, "\n", "; ")))
	}
	return err
}
