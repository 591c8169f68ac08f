package logcmd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/driver"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/report"
)

// formats are those of scopefs-export.
var formats = []string{"csv", "ocsf", "otlp"}

func (v Env) exportCmd() *cobra.Command {
	var o options
	var format string
	c := &cobra.Command{
		Use:   "export --format csv|ocsf|otlp",
		Short: "print the log for other programs",
		Long: `Prints events as CSV, as lines of JSON in the Open Cybersecurity Schema Framework (OCSF), or as lines of OTLP's
JSON, which a collector's otlpjsonfile receiver reads. --after continues behind an event that was exported
before. Strings are escaped as in the log; a cell of CSV that begins like a formula has a ' before it.
The program scopefs-export, beside scopefs, writes the formats.`,
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
	if !slices.Contains(formats, format) {
		return exit.Usagef("--format %q: want %s", format, strings.Join(formats, ", "))
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	to, err := v.converter(format)
	if err != nil {
		return err
	}
	err = report.Each(ctx, dir, o.Selection, o.follow, v.Err, func(e audit.Event) error {
		_, err := to.lines.Write(append(e.Raw, '\n'))
		if err == nil && o.follow {
			err = to.lines.Flush()
		}
		return err
	})
	return to.end(err)
}

// A converter is scopefs-export, which reads lines of the log and prints them in a format.
type converter struct {
	cmd   *exec.Cmd
	lines *bufio.Writer
	close func() error
}

func (v Env) converter(format string) (*converter, error) {
	binary, err := driver.OpenBinary(driver.Export, "")
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(binary.Path(), format, v.Version)
	cmd.Args[0], cmd.Stdout, cmd.Stderr = driver.Export, v.Out, v.Err
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", driver.Export, err)
	}
	return &converter{cmd, bufio.NewWriterSize(in, 64<<10), in.Close}, nil
}

// end ends the program after its last line, and returns the error of the lines, unless the program itself said why it ended.
func (c *converter) end(lines error) error {
	broken := errors.Join(c.lines.Flush(), c.close())
	ended := c.cmd.Wait()
	failed, ok := errors.AsType[*exec.ExitError](ended)
	switch {
	case ok && failed.Sys().(syscall.WaitStatus).Signal() == syscall.SIGPIPE: // nobody reads on, as after | head
		return exit.With(exit.Failed, nil)
	case ok && failed.Exited():
		return exit.With(exit.Failed, nil)
	case ended != nil:
		return fmt.Errorf("%s: %w", driver.Export, ended)
	case lines != nil:
		return lines
	}
	return broken
}
