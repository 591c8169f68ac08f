package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/scopefs/scopefs/internal/durable"
	"github.com/scopefs/scopefs/internal/fleet/order"
)

// maxNonces bounds the numbers of orders that are still valid. Only who has a trusted key uses one up.
const maxNonces = 4096

// nonces are the numbers of orders that were taken, in a file: each counts once, whichever daemon takes it.
type nonces struct {
	dir  *os.Root
	used map[string]time.Time // until when an order with it would be valid
}

const noncesName = "nonces"

func openNonces(state string) (*nonces, error) {
	at := filepath.Join(state, "fleet")
	if err := os.MkdirAll(at, 0o700); err != nil {
		return nil, err
	}
	dir, err := os.OpenRoot(at)
	if err != nil {
		return nil, err
	}
	n := &nonces{dir: dir, used: map[string]time.Time{}}
	text, err := dir.ReadFile(noncesName)
	if err == nil {
		err = json.Unmarshal(text, &n.used)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		dir.Close()
		return nil, fmt.Errorf("%s: %w: remove it %v after the last decision", filepath.Join(at, noncesName), err, order.Valid)
	}
	return n, nil
}

func (n *nonces) close() { n.dir.Close() }

// use marks a number as used, on the disk. It fails for one that was used.
func (n *nonces) use(nonce string, expires time.Time) error {
	now := time.Now()
	// the clock may be set back a little
	maps.DeleteFunc(n.used, func(_ string, until time.Time) bool { return now.After(until.Add(time.Minute)) })
	if _, used := n.used[nonce]; used {
		return errors.New("it was taken before")
	}
	if len(n.used) >= maxNonces {
		return fmt.Errorf("more than %d decisions in %v: wait", maxNonces, order.Valid)
	}
	n.used[nonce] = expires
	text, err := json.Marshal(n.used)
	if err == nil {
		err = durable.Replace(n.dir, noncesName, text, durable.Options{})
	}
	if err != nil {
		return fmt.Errorf("note that it is taken: %w", err)
	}
	return nil
}
