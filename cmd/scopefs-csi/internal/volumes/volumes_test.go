package volumes

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/api"
)

// busy is a daemon that answers nothing about one agent.
type busy struct{ agent string }

func (busy) Agents(ctx context.Context) ([]api.Agent, error) { return nil, ctx.Err() }

func (d busy) Volume(ctx context.Context, req api.VolumeRequest) (api.VolumeReply, error) {
	if req.Volume.Agent == d.agent {
		<-ctx.Done()
	}
	return api.VolumeReply{}, ctx.Err()
}

// TestLookBusy: an agent that is busy, however many volumes it has, delays no look at a volume of another one.
func TestLookBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, err := openTable(t.TempDir())
		require.NoError(t, err)
		defer table.dir.Close()
		s := &Volumes{Config: Config{Pods: t.TempDir(), Log: slog.New(slog.DiscardHandler)}, daemon: busy{"a"}, table: table}
		gone := func(agents map[string]string) { // volumes of pods that are gone
			for id, agent := range agents {
				target := filepath.Join(s.Pods, id, "volumes/kubernetes.io~csi/view/mount")
				require.NoError(t, table.put(api.PodVolume{ID: id, Agent: agent, Target: target}))
			}
		}
		left := func() (ids []string) {
			for _, v := range table.list() {
				ids = append(ids, v.ID)
			}
			return ids
		}
		ctx, cancel := context.WithCancel(t.Context())
		var watch sync.WaitGroup
		defer watch.Wait()
		defer cancel()
		gone(map[string]string{"1": "a", "2": "a", "3": "a", "4": "b"})
		watch.Go(func() { s.Watch(ctx) })
		synctest.Wait()
		assert.Equal(t, []string{"1", "2", "3"}, left(), "the first look")
		for id := range 5 {
			gone(map[string]string{fmt.Sprint(4 + id): "c"})
			time.Sleep(lookTime)
			synctest.Wait()
			assert.Equal(t, []string{"1", "2", "3"}, left(), "while the agent is busy")
		}
	})
}
