// Package top is the operator's terminal: the table of what agents do now, and the watch of calls that wait.
package top

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/tools/approvals"
)

// MinInterval is how long the daemon keeps an answer.
const MinInterval = time.Second

// Run shows the table on a terminal, and does what keys say, until the operator quits.
func Run(ctx context.Context, client *api.Daemons, interval time.Duration, in *os.File, out io.Writer) error {
	m := newModel(ctx, daemonSide{client}, interval)
	err := show(ctx, m, in, out)
	m.stop()
	if err == nil {
		err = m.fatal
	}
	return err
}

// Lines prints a line of JSON at each refresh; of an interval of 0 one line.
func Lines(ctx context.Context, client *api.Daemons, interval time.Duration, out io.Writer) error {
	for {
		t, err := client.Top(ctx)
		if err != nil {
			return err
		}
		if err := report.Line(out, t); err != nil || interval == 0 {
			return err
		}
		select {
		case <-time.After(interval):
		case <-ctx.Done():
			return nil
		}
	}
}

// Once prints the table. CPU is of the second that it takes.
func Once(ctx context.Context, client *api.Daemons, out io.Writer) error {
	first, err := client.Top(ctx)
	if err != nil {
		return err
	}
	select {
	case <-time.After(MinInterval + 100*time.Millisecond):
	case <-ctx.Done():
		return ctx.Err()
	}
	second, err := client.Top(ctx)
	if err != nil {
		return err
	}
	s := newScreen(first, second)
	lines := []string{s.head(), header}
	for _, row := range s.rows(false) {
		lines = append(lines, row.text)
	}
	_, err = fmt.Fprintln(out, strings.Join(lines, "\n"))
	return err
}

// source is what top needs of the daemon and the log.
type source interface {
	Top(context.Context) (api.Top, error)
	Approval(ctx context.Context, id string) (approvals.Approval, error)
	Approve(ctx context.Context, id string, how api.DecideRequest) (approvals.Approval, error)
	Deny(ctx context.Context, id string, how api.DecideRequest) (approvals.Approval, error)
	Kill(ctx context.Context, id string) (api.Session, error)
	// Follow sends the lines of an agent's log until ctx ends, and closes the channel.
	Follow(ctx context.Context, agent string, lines chan<- string)
}

// daemonSide is the source of a running daemon.
type daemonSide struct{ *api.Daemons }

// followSince is how much of the past a followed log shows.
const followSince = 10 * time.Minute

func (d daemonSide) Follow(ctx context.Context, agent string, lines chan<- string) {
	defer close(lines)
	to := lineChannel{ctx, lines}
	paths, ok := d.PathsOf(ctx, agent)
	if !ok {
		_, _ = fmt.Fprintln(to, "no daemon has the agent any more")
		return
	}
	if err := report.Follow(ctx, paths.Audit(), agent, time.Now().Add(-followSince), to); err != nil {
		_, _ = fmt.Fprintln(to, cmp.Or(ctx.Err(), err))
	}
}

// lineChannel is a Writer that sends each line.
type lineChannel struct {
	ctx   context.Context
	lines chan<- string
}

func (c lineChannel) Write(b []byte) (int, error) {
	select {
	case c.lines <- strings.TrimSuffix(string(b), "\n"):
		return len(b), nil
	case <-c.ctx.Done():
		return 0, c.ctx.Err()
	}
}
