package volumes

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"testing/synctest"

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

// TestLookBusy: an agent that is busy, however many volumes it has, keeps look from no volume of another one.
func TestLookBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, err := openTable(t.TempDir())
		require.NoError(t, err)
		defer table.dir.Close()
		s := &Volumes{Config: Config{Pods: t.TempDir(), Log: slog.New(slog.DiscardHandler)}, daemon: busy{"a"}, table: table}
		for id, agent := range map[string]string{"1": "a", "2": "a", "3": "a", "4": "b"} {
			target := filepath.Join(s.Pods, id, "volumes/kubernetes.io~csi/view/mount") // of a pod that is gone
			require.NoError(t, table.put(api.PodVolume{ID: id, Agent: agent, Target: target}))
		}
		s.look(t.Context())
		var left []string
		for _, v := range table.list() {
			left = append(left, v.ID)
		}
		assert.Equal(t, []string{"1", "2", "3"}, left)
	})
}
