// Package anchor gives a signed head of the log to a place outside of the host, each by a process that ends within a bound: a
// file on another mount, a git remote, a witness, the operator's command. scopefs-export has the one for syslog.
package anchor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/bounded"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/witness"
)

// Name is the argv[0] of a process.
const Name = "scopefs-anchor"

// Time limits how long an anchor may take for a head.
const Time = 30 * time.Second

// ErrFork reports that an anchor has another history of the log, or not any more what it was given.
var ErrFork = errors.New("the anchor has another history of this log")

// Request is what a process reads on standard input.
type Request struct {
	config.Anchor
	Head   []byte // signed
	Size   int64  // lines below the head
	Origin string // the name of the log
	Host   string // the name of this host

	State   string   // {state}
	Audit   string   // the directory of the log
	Private []string // directories that agents may write, or read the log's files in
	Secret  string   // of the credential; "": there is none
}

// The exit statuses of a process beside 0.
const (
	exitFailed = 1
	exitFork   = 3
)

// maxRequest limits a request, in bytes.
const maxRequest = 4 << 20

// Main is a process: it gives the head of its standard input to the anchor by take, and returns the exit status. What went wrong is
// standard error.
func Main(take func(context.Context, Request) error) int {
	// The daemon may have been killed, and ends nothing then. A write to a file system that does not answer outlives even this.
	time.AfterFunc(Time+time.Second, func() { _ = unix.Kill(0, unix.SIGKILL) })
	ctx, cancel := context.WithTimeout(context.Background(), Time-time.Second)
	defer cancel()
	var r Request
	text, err := bounded.Read(os.Stdin, maxRequest)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		err = fmt.Errorf("scopefs starts it: %w", err)
	} else {
		err = take(ctx, r)
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrFork), errors.Is(err, witness.ErrFork):
		fmt.Fprintln(os.Stderr, err)
		return exitFork
	}
	fmt.Fprintln(os.Stderr, err)
	return exitFailed
}

// Take is the process of scopefs itself.
func Take(ctx context.Context, r Request) error {
	switch {
	case r.File != "":
		return toFile(r)
	case r.Git != "":
		return toGit(ctx, r)
	case r.Witness != "":
		return toWitness(ctx, r)
	}
	return errors.New("not an anchor of this program")
}

const maxSaid = 1 << 10 // bytes of what a process writes
