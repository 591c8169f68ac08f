package volumes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/bounded"
	"github.com/scopefs/scopefs/internal/durable"
)

const (
	stateFile = "volumes.json"
	maxState  = 16 << 20 // bytes
)

// table is the volumes that this plugin has published, or was about to, in a file. A volume is there before it is mounted,
// and until it is unmounted and the daemon has recorded that.
type table struct {
	mu   sync.Mutex // guards all; held while the file is written
	dir  *os.Root
	all  map[string]api.PodVolume
	busy map[string]bool // volumes and agents of requests that run, see lock

	freed chan struct{} // closed when a request has ended
}

func openTable(dir string) (*table, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	t := &table{dir: root, all: map[string]api.PodVolume{}, busy: map[string]bool{}, freed: make(chan struct{})}
	f, err := root.Open(stateFile)
	if errors.Is(err, os.ErrNotExist) {
		return t, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := bounded.Read(f, maxState)
	if err == nil {
		err = json.Unmarshal(text, &t.all)
	}
	if err != nil {
		return nil, fmt.Errorf("%s/%s: %w: unmount what is below the pods' directories, and remove the file", dir, stateFile, err)
	}
	return t, nil
}

func (t *table) get(id string) (api.PodVolume, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v, ok := t.all[id]
	return v, ok
}

func (t *table) list() []api.PodVolume {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.SortedFunc(maps.Values(t.all), func(a, b api.PodVolume) int { return strings.Compare(a.ID, b.ID) })
}

// others reports whether another volume has the agent of v.
func (t *table) others(v api.PodVolume) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range t.all {
		if o.ID != v.ID && o.Agent == v.Agent {
			return true
		}
	}
	return false
}

func (t *table) put(v api.PodVolume) error {
	return t.change(func(all map[string]api.PodVolume) { all[v.ID] = v })
}

func (t *table) remove(id string) error {
	return t.change(func(all map[string]api.PodVolume) { delete(all, id) })
}

func (t *table) change(f func(map[string]api.PodVolume)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := maps.Clone(t.all)
	f(next)
	text, err := json.Marshal(next)
	if err == nil {
		err = durable.Replace(t.dir, stateFile, text, durable.Options{})
	}
	if err == nil {
		t.all = next
	}
	return err
}

// lock takes the names for one request. ok is false if another request has one of them: kubelet repeats its requests.
func (t *table) lock(names ...string) (free func(), ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range names {
		if t.busy[name] {
			return nil, false
		}
	}
	for _, name := range names {
		t.busy[name] = true
	}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, name := range names {
			delete(t.busy, name)
		}
		close(t.freed)
		t.freed = make(chan struct{})
	}, true
}

// lockSoon is lock that waits for a look, which is short, for a second at most.
func (t *table) lockSoon(ctx context.Context, names ...string) (free func(), ok bool) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for {
		t.mu.Lock()
		freed := t.freed
		t.mu.Unlock()
		if free, ok = t.lock(names...); ok {
			return free, true
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, false
		}
	}
}
