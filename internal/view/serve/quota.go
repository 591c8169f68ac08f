package serve

import (
	"os"

	"github.com/scopefs/scopefs/fs/hold"
	"github.com/scopefs/scopefs/fs/quota"
	"github.com/scopefs/scopefs/internal/view/wire"
	"github.com/scopefs/scopefs/scope/beneath"
)

// counterOf returns what counts the files of a view: those of root and of its history, or of what it holds alone.
func counterOf(cfg *wire.Config, root *beneath.Root, layers *hold.Layers) (*quota.Counter, error) {
	f := os.NewFile(wire.QuotaFD, "quota")
	defer f.Close()
	page, err := quota.Map(f)
	if err != nil {
		return nil, err
	}
	var layer *beneath.Root
	roots := []*beneath.Root{root}
	switch {
	case cfg.Whole && layers != nil:
		layer = layers.Upper
		roots[0] = layer
	case cfg.History != nil || cfg.Hold:
		history, err := beneath.NewDetached(wire.HistoryFD)
		if err != nil {
			return nil, err
		}
		roots = append(roots, history)
	}
	c := quota.NewCounter(page, *cfg.Quota, layer, roots...)
	c.Start()
	if layers != nil {
		layers.Quota = c
	}
	return c, nil
}
