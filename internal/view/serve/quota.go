package serve

import (
	"os"

	"github.com/scopefs/scopefs/fs/quota"
	"github.com/scopefs/scopefs/internal/view/wire"
	"github.com/scopefs/scopefs/scope/beneath"
)

// counterOf returns what counts the files of a view.
func counterOf(cfg *wire.Config, root *beneath.Root) (*quota.Counter, error) {
	switch {
	case cfg.Bases:
		return newCounter(*cfg.Quota, wire.UpperFD, -1, root)
	case cfg.History != nil || cfg.Hold:
		return newCounter(*cfg.Quota, -1, wire.HistoryFD, root)
	}
	return newCounter(*cfg.Quota, -1, -1, root)
}

// newCounter returns what counts the files of root and of the history of a descriptor. With upper root is an overlay, and those of
// its upper layer count. -1 is none.
func newCounter(slot, upper, history int, root *beneath.Root) (*quota.Counter, error) {
	f := os.NewFile(wire.QuotaFD, "quota")
	defer f.Close()
	page, err := quota.Map(f)
	if err != nil {
		return nil, err
	}
	var layer *beneath.Root
	roots := []*beneath.Root{root}
	switch {
	case upper >= 0:
		layer, err = beneath.NewDetached(upper)
		roots[0] = layer
	case history >= 0:
		roots = append(roots, nil)
		roots[1], err = beneath.NewDetached(history)
	}
	if err != nil {
		return nil, err
	}
	c := quota.NewCounter(page, slot, layer, roots...)
	c.Start()
	return c, nil
}
