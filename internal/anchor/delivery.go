package anchor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/scopefs/scopefs/internal/bounded"
	"github.com/scopefs/scopefs/internal/driver"
	"github.com/scopefs/scopefs/internal/oneshot"
	"github.com/scopefs/scopefs/internal/printable"
)

// Give gives a head to an anchor: it runs a command with the head on its standard input, or one of our programs with the
// request. It returns soon after [Time], with a [oneshot.StuckError] if the process waits for a file system and cannot be
// ended. An error for which errors.Is(err, ErrFork) holds is of an anchor that has another history.
func Give(ctx context.Context, r Request) error {
	if len(r.Command) > 0 {
		err := oneshot.Run(ctx, exec.Command(r.Command[0], r.Command[1:]...), r.Head, Time)
		if err != nil {
			err = fmt.Errorf("%q: %w: run it by hand with scopefs audit head on its standard input", r.Command[0], err)
		}
		return err
	}
	path := "/proc/self/exe"
	if r.Syslog != "" {
		binary, err := driver.OpenBinary(driver.Export, "")
		if err != nil {
			return err
		}
		path = binary.Path()
	}
	if r.Credential != nil {
		secret, err := r.Credential.Read(ctx)
		if err != nil {
			return fmt.Errorf("credential: %w", err)
		}
		r.Secret = secret.Reveal()
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	out := bounded.Writer{Left: maxSaid}
	cmd := exec.Command(path)
	cmd.Args, cmd.Dir, cmd.Stderr = []string{Name}, "/", &out
	err = oneshot.Run(ctx, cmd, text, Time)
	if _, stuck := errors.AsType[*oneshot.StuckError](err); stuck || err == nil {
		return err // it may still write to out
	}
	exited, ok := errors.AsType[*exec.ExitError](err)
	why := strings.TrimSpace(printable.Text(strings.ReplaceAll(strings.TrimSpace(string(out.Text)), "\n", "; ")))
	switch {
	case ok && exited.ExitCode() == exitFork:
		return &failure{cmp.Or(why, err.Error()), ErrFork}
	case why == "":
		return err
	}
	return &failure{why, err}
}

// failure is an error with the text of a process.
type failure struct {
	text string
	why  error
}

func (f *failure) Error() string { return f.text }
func (f *failure) Unwrap() error { return f.why }
