package bases

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/embedded"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/paths"
)

// OnDemand is the flag of a user's daemon that serves bases alone that commands open, and ends without them.
const OnDemand = "on-demand"

// openTime bounds how long a command waits for the daemon of its base.
const openTime = 90 * time.Second

// Retry calls f, whose error says that no daemon answers for a base, or that it is ending. If the user's daemon serves the
// base, Retry opens the base and calls f again; opened reports that. It starts the user's daemon if none runs.
func Retry(ctx context.Context, p config.Paths, f func() error) (opened bool, err error) {
	err = f()
	for range 3 { // the daemon of a base may end before f reaches it
		if !gone(err) {
			break
		}
		now, no := open(ctx, p)
		if no != nil {
			return opened, no
		}
		if !now {
			break
		}
		opened, err = true, f()
	}
	return opened, err
}

func gone(err error) bool {
	refused, ok := errors.AsType[*api.Error](err)
	return errors.Is(err, api.ErrNoDaemon) || ok && refused.Kind == api.Closing
}

// open has the user's daemon serve a base. It reports false if none can.
func open(ctx context.Context, p config.Paths) (bool, error) {
	own, err := paths.OfUser()
	if err != nil || !embedded.Serves(p) {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	for {
		got, err := api.UserDaemon(own).OpenBase(ctx, api.BaseRequest{Base: p.Base, Env: os.Environ()})
		refused, answered := errors.AsType[*api.Error](err)
		switch {
		case err == nil:
			return got.State == p.State && got.Run == p.Run, nil
		case ctx.Err() != nil:
			return false, fmt.Errorf("the user's daemon does not open %s within %v: see its log, or scopefs daemon --stop", p.Base, openTime)
		case answered && refused.Kind == api.NotFound: // its environment names other directories
			return false, nil
		case answered && refused.Kind != api.Closing:
			if refused.Status > 0 {
				return false, exit.With(refused.Status, err)
			}
			return false, err
		case !answered && embedded.StartUser(ctx, api.UserDaemon(own).Answers, "--"+OnDemand) != nil:
			return false, nil // the command starts a daemon of its own
		}
		time.Sleep(startPause)
	}
}

// Stop ends the user's daemon.
func Stop(ctx context.Context) error {
	own, err := paths.OfUser()
	if err != nil {
		return err
	}
	if own.Run == "" {
		return errors.New("XDG_RUNTIME_DIR is not set, and without it a user has no daemon: " +
			"scopefs daemon --stop --dir DIR ends that of a project")
	}
	ctx, cancel := context.WithTimeout(ctx, 2*endTime)
	defer cancel()
	return api.UserDaemon(own).Stop(ctx)
}
