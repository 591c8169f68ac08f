package logcmd

import (
	"cmp"
	"context"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/export"
	"github.com/scopefs/scopefs/internal/report"
)

func (v Env) exportCmd() *cobra.Command {
	var o options
	var format string
	c := &cobra.Command{
		Use:   "export --format csv|ocsf|otlp",
		Short: "print the log for other programs",
		Long: `Prints events as CSV, as lines of JSON in the Open Cybersecurity Schema Framework (OCSF), or as lines of OTLP's
JSON, which a collector's otlpjsonfile receiver reads. --after continues behind an event that was exported
before. Strings are escaped as in the log; a cell of CSV that begins like a formula has a ' before it.`,
		Args: exit.Args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return v.export(c.Context(), o, format) },
	}
	v.selection(c, &o)
	c.Flags().StringVar(&format, "format", "", "csv, ocsf or otlp")
	c.Flags().Uint64Var(&o.After, "after", 0, "only events with a number above this one")
	c.Flags().BoolVarP(&o.follow, "follow", "f", false, "then wait for more")
	return c
}

func (v Env) export(ctx context.Context, o options, format string) error {
	_, dir, err := v.logs(&o)
	if err != nil {
		return err
	}
	if err := o.check(time.Now()); err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	w, err := export.New(format, v.Out, export.Source{Host: host, Version: v.Version})
	if err != nil {
		return exit.With(exit.Usage, err)
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	err = report.Each(ctx, dir, o.Selection, o.follow, v.Err, func(e audit.Event) error {
		err := w.Write(e)
		if err == nil && o.follow {
			err = w.Flush()
		}
		return err
	})
	return cmp.Or(w.Flush(), err)
}
