package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/internal/selftest"
)

type selftestOptions struct {
	against             string
	json, list, verbose bool
}

func (a *app) selftestCmd() *cobra.Command {
	var o selftestOptions
	c := &cobra.Command{
		Use:   "selftest [CLASS|ID]...",
		Short: "try to escape on this host",
		Long: `Tries to escape from the view, the sandbox, the tools and the stores of throw-away agents on this host:
by paths, links, races, descriptors, processes, sockets, the proxy, members, and files that the host executes. What was
reached is judged from outside. The classes are files, processes, network, host, view (as root: by host processes in
a mounted view), tools, stores, context and delegation.

--against tries the same in another sandbox, as far as it applies: a command before that of the attempt, with
{dir} for the agent's directory, or one that mounts that at {mnt}, such as 'bindfs -f {dir} {mnt}'. Some attempts
end processes and remove files that selftest has made outside.

Exit status: 0 nothing was reached, 1 something was, or an attempt could not be made, 2 none could be made.`,
		RunE: func(c *cobra.Command, words []string) error { return a.selftest(c.Context(), words, o) },
	}
	f := c.Flags()
	f.StringVar(&o.against, "against", "", "a command to run the attempts with, in place of scopefs")
	f.BoolVar(&o.json, "json", false, "print a line of JSON for each attempt")
	f.BoolVar(&o.list, "list", false, "print the attempts, and make none")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "print all attempts, with what they printed")
	return c
}

func (a *app) selftest(ctx context.Context, words []string, o selftestOptions) error {
	if o.list {
		list, err := selftest.Attempts()
		if err != nil {
			return err
		}
		var t report.Table
		for _, one := range list {
			t.Row(one.ID, one.Class, one.Try, one.Like)
		}
		return t.Print(a.out)
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, unix.SIGTERM)
	defer stop()
	counts := map[string]map[string]int{}
	var classes []string
	var failed []selftest.Outcome
	err = selftest.Run(ctx, selftest.Options{Program: program, Against: o.against, Only: words, Each: func(one selftest.Outcome) {
		if counts[one.Class] == nil {
			counts[one.Class] = map[string]int{}
			classes = append(classes, one.Class)
		}
		counts[one.Class][one.State]++
		if one.State == selftest.Failed || one.State == selftest.NotMade {
			failed = append(failed, one)
		}
		switch {
		case o.json:
			_ = report.Line(a.out, one)
		case o.verbose:
			_ = report.Attempt(a.out, one)
		}
	}})
	if err != nil {
		return exit.With(exit.Usage, err)
	}
	if !o.json {
		err = report.Selftest(a.out, slices.Values(classes), counts, failed)
	}
	if err == nil && len(failed) > 0 {
		err = fmt.Errorf("%d attempts reached what is outside, or were not made", len(failed))
	}
	return err
}
