package report

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/bounded"
	"github.com/scopefs/scopefs/internal/changes"
)

// gitWords begin every command: git writes nothing, and starts as little as it can.
var gitWords = []string{"git", "--no-optional-locks", "-c", "core.fsmonitor=", "-c", "core.hooksPath=/dev/null"}

const (
	gitTime   = 30 * time.Second
	maxGitOut = 64 << 20 // bytes
)

// oldOfGit returns the texts of files in the last commit before the report begins, and the
// commit. git runs in a sandbox of the agent: what a repository makes it start can do no
// more than the agent's own programs. What it prints is not trusted.
func oldOfGit(ctx context.Context, client *api.Client, r *Changes, paths []string) (map[string][]byte, string, error) {
	ctx, cancel := context.WithTimeout(ctx, gitTime)
	defer cancel()
	git := func(input string, words ...string) ([]byte, error) {
		return collect(ctx, client, r, slices.Concat(gitWords, words), input)
	}
	out, err := git("", "rev-list", "-1", "--first-parent", fmt.Sprintf("--before=%d", r.Since.Unix()), "HEAD")
	if errors.Is(err, api.ErrNoDaemon) {
		return nil, "", errors.New("no daemon runs that could start git in a sandbox: start one, or give --against")
	}
	commit := strings.TrimSpace(string(out))
	if err != nil || !isCommit(commit) {
		return nil, "", errors.New("no commit of the agent's repository is older: give --against a copy from before")
	}
	var wanted []string
	var input strings.Builder
	for _, rel := range paths {
		if !strings.ContainsAny(rel, "\n\x00") {
			wanted = append(wanted, rel)
			fmt.Fprintf(&input, "%s:%s\n", commit, rel)
		}
	}
	if out, err = git(input.String(), "cat-file", "--batch"); err != nil {
		return nil, "", err
	}
	old, err := parseBatch(out, wanted)
	return old, commit[:12], err
}

// isCommit reports whether s is a hash: 40 or 64 hexadecimal digits.
func isCommit(s string) bool {
	return (len(s) == 40 || len(s) == 64) && strings.Trim(s, "0123456789abcdef") == ""
}

// parseBatch parses the output of git cat-file --batch: for each path a line, HASH TYPE
// SIZE, and the object; or a line that ends in "missing" (git-cat-file(1)).
func parseBatch(out []byte, paths []string) (map[string][]byte, error) {
	bad := errors.New("git printed what git cat-file does not")
	old := map[string][]byte{}
	r := bufio.NewReader(bytes.NewReader(out))
	for _, rel := range paths {
		line, err := r.ReadString('\n')
		if err != nil {
			return nil, bad
		}
		line = strings.TrimSuffix(line, "\n")
		if strings.HasSuffix(line, " missing") || strings.HasSuffix(line, " ambiguous") {
			continue
		}
		f := strings.Fields(line)
		if len(f) != 3 || !isCommit(f[0]) {
			return nil, bad
		}
		size, err := strconv.Atoi(f[2])
		if err != nil || size < 0 || size > len(out) {
			return nil, bad
		}
		text := make([]byte, size+1)
		if _, err := io.ReadFull(r, text); err != nil || text[size] != '\n' {
			return nil, bad
		}
		if f[1] == "blob" && size <= changes.MaxText {
			old[rel] = text[:size]
		}
	}
	return old, nil
}

// collect runs a program as the agent and returns its output.
func collect(ctx context.Context, client *api.Client, r *Changes, argv []string, input string) ([]byte, error) {
	run, err := client.Run(ctx, r.Agent, api.RunRequest{Argv: argv})
	if err != nil {
		return nil, err
	}
	defer run.Close()
	stop := context.AfterFunc(ctx, func() { run.Close() })
	defer stop()
	go func() {
		_, _ = io.WriteString(run.Stdin, input)
		run.Stdin.Close()
	}()
	go func() {
		_, _ = io.Copy(io.Discard, run.Stderr)
		run.Stderr.Close()
	}()
	var text []byte
	var unread error
	var reading sync.WaitGroup
	reading.Go(func() {
		text, unread = bounded.Read(run.Stdout, maxGitOut)
		run.Stdout.Close()
	})
	exit, err := run.Wait(func(string) {})
	run.End() // also ends what holds the streams
	reading.Wait()
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%s has not ended within %v", argv[0], gitTime)
	case err != nil:
		return nil, err
	case exit.Code != 0 || exit.Signal != 0:
		return nil, fmt.Errorf("%s has failed", argv[0])
	case errors.Is(unread, bounded.ErrTooLong):
		return nil, fmt.Errorf("%s printed more than %d bytes", argv[0], maxGitOut)
	}
	return text, unread
}
