// Package engine executes the statements of one agent in a confined process; tools/sql/engine has its
// protocol, and says what confines it.
package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/scopefs/scopefs/cmd/scopefs-stores/internal/sqliteconn"
	"github.com/scopefs/scopefs/internal/confine"
	"github.com/scopefs/scopefs/internal/peer"
	wire "github.com/scopefs/scopefs/tools/sql/engine"
)

// The files of the process.
const (
	databasePath = "/agent.db"
	journalPath  = databasePath + "-journal" // SQLite's name for it
)

// Confine takes from this process what SQLite does not need. The descriptors of [wire.DatabaseFD] become
// its only files.
func Confine(cfg wire.Config) ([]string, error) {
	means, err := confine.Confine(confine.Needs{
		Trees:  map[string]int{databasePath: wire.DatabaseFD, journalPath: wire.JournalFD},
		Memory: cfg.Memory, FileBytes: 2*cfg.FileBytes + 1<<20, // a journal has a header for each page
		Files: 32,
	})
	return append([]string{"root: two files"}, means...), err
}

// Main is the engine process. It confines itself, then executes one request after the
// other until its standard input ends. It returns the exit status.
func Main() int {
	in, out := peer.NewReader(os.Stdin, wire.MaxFrame), peer.NewWriter(os.Stdout, wire.MaxFrame, 0)
	if err := serve(in, out); err != nil {
		_ = wire.Send(out, wire.Reply{Error: &wire.Error{Code: wire.Failed, Message: err.Error()}})
		return 1
	}
	return 0
}

func serve(in *peer.Reader, out *peer.Writer) error {
	ctx := context.Background()
	var cfg wire.Config
	if err := wire.Receive(in, &cfg); err != nil {
		return fmt.Errorf("receive configuration: %w", err)
	}
	// Beyond RLIMIT_FSIZE a write then fails with EFBIG. setrlimit(2).
	signal.Ignore(syscall.SIGXFSZ)
	debug.SetMemoryLimit(cfg.Memory / 2) // of Go; SQLite's memory is beside it
	if err := sqliteconn.Seed(ctx); err != nil {
		return err
	}
	means, err := Confine(cfg)
	if err != nil {
		return fmt.Errorf("confine: %w", err)
	}
	d, err := open(ctx, databasePath, cfg)
	if err != nil {
		return err
	}
	if err := wire.Send(out, wire.Reply{Means: means}); err != nil {
		return err
	}
	requests, ended := make(chan wire.Request, 1), make(chan error, 1)
	go receive(in, requests, ended)
	for {
		select {
		case r := <-requests:
			if err := wire.Send(out, d.do(ctx, &r)); err != nil {
				return err
			}
		case err := <-ended:
			if errors.Is(err, io.EOF) {
				return d.close()
			}
			return err
		}
	}
}

// receive reads requests until the input ends. It then ends the process after a
// second: the daemon is gone, and nobody else would end a statement that the
// engine does not interrupt. The journal undoes what the statement did.
func receive(in *peer.Reader, requests chan<- wire.Request, ended chan<- error) {
	for {
		var r wire.Request
		if err := wire.Receive(in, &r); err != nil {
			ended <- err
			time.AfterFunc(time.Second, func() { os.Exit(1) })
			return
		}
		requests <- r
	}
}
