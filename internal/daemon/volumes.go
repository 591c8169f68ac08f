package daemon

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/scope"
)

// removeTime bounds the end of a view whose definition was made for pods.
const removeTime = 10 * time.Second

// volume records what happens to a volume of a pod, and does the daemon's part of it. scopefs-csi asks for it.
func (d *Daemon) volume(_ http.ResponseWriter, r *http.Request) (any, error) {
	var req api.VolumeRequest
	if err := body(r, &req); err != nil {
		return nil, err
	}
	v := req.Volume
	uid, _ := api.PeerOf(r.Context())
	e := audit.Event{Event: audit.KindView, Path: v.Target, Target: "pod " + v.Pod, UID: &uid,
		Detail: fmt.Sprintf("service account %s, pod %s, volume %s", v.Account, v.UID, v.ID)}
	if v.ReadOnly {
		e.Detail += ", read-only"
	}
	if v.From != "" {
		e.Detail += fmt.Sprintf(", definition %s, SHA-256 %x", v.From, sha256.Sum256([]byte(v.Narrow)))
	}
	if req.Reason != "" {
		e.Detail = req.Reason + ": " + e.Detail
	}
	id, err := v.AgentID()
	if err == nil {
		e.Agent = v.Agent
	}
	switch req.Do {
	case api.RefuseVolume:
		e.Outcome, e.Verdict = "volume refused", audit.Deny
		return struct{}{}, d.Record(r.Context(), e)
	case api.PublishVolume:
		e.Outcome, e.Verdict = "volume published", audit.Allow
	case api.RebindVolume:
		e.Outcome = "volume bound again"
	case api.NarrowVolume: // narrow records
	case api.UnpublishVolume:
		e.Outcome = "volume unpublished"
	default:
		return nil, invalid("do: %q is no operation of volumes", req.Do)
	}
	if err != nil {
		return nil, err
	}
	free, err := d.volumes.Take(r.Context(), id) // a request that was given up may still run
	if err != nil {
		return nil, err
	}
	defer free()
	if e.Outcome != "" {
		if err := d.Record(r.Context(), e); err != nil {
			return nil, err
		}
	}
	made := madeFor(id, v)
	switch {
	case req.Do == api.NarrowVolume:
		return struct{}{}, d.narrow(r.Context(), v, e)
	case req.Do == api.PublishVolume:
		at, err := d.mountFor(r.Context(), made)
		if err == nil && v.From != "" {
			err = d.narrow(r.Context(), v, e) // another pod may have the agent with an earlier text
		}
		return api.VolumeReply{Mount: at}, err
	case req.Do == api.UnpublishVolume && req.Last && made.Text != "":
		if err := d.removeMade(r.Context(), made); err != nil { // the pod has lost its view all the same
			d.Logger.Error("a definition that was made for pods stays: remove it", "agent", id, "err", err)
		}
		return api.VolumeReply{}, nil
	default:
		return api.VolumeReply{}, nil
	}
}

func madeFor(id scope.ID, v api.PodVolume) definitions.Made {
	return definitions.Made{ID: id, Text: v.Definition, Narrow: v.Narrow, Varies: v.From != ""}
}

// narrow puts a text in force that narrows a definition that was made for pods, if it is another one and loads.
func (d *Daemon) narrow(ctx context.Context, v api.PodVolume, e audit.Event) error {
	id, err := v.AgentID()
	if err != nil {
		return err
	}
	made := madeFor(id, v)
	if same, err := made.Narrowed(d.Paths); err != nil || same {
		return err
	}
	if _, wrong := d.loaded.Load().Propose(id, []byte(v.Narrow)); wrong != nil {
		err := fields.InFile(v.From+".yaml", wrong)
		e.Outcome, e.Verdict = "volume narrowing refused", audit.Deny
		e.Detail = err.Error() + ": " + e.Detail
		return errors.Join(err, d.Record(ctx, e))
	}
	e.Outcome = "volume narrowed"
	if err := d.Record(ctx, e); err != nil {
		return err
	}
	if err := made.Renarrow(d.Paths); err != nil {
		return err
	}
	d.Reload(ctx)
	return nil
}

// mountFor mounts the view of a pod's agent. After an error the volume is unpublished: another pod may have the view.
func (d *Daemon) mountFor(ctx context.Context, made definitions.Made) (string, error) {
	if made.Text != "" {
		if err := made.Make(d.Paths); err != nil {
			return "", err
		}
		d.Refresh(made.ID)
	}
	if _, err := d.Definition(made.ID); err != nil {
		return "", err
	}
	a, err := d.Agent(made.ID)
	if err != nil {
		return "", err
	}
	return a.Up(ctx, "")
}

// removeMade ends the view of a definition that was made for pods, and removes it. The agent's files stay. A view of another
// definition is somebody else's.
func (d *Daemon) removeMade(ctx context.Context, made definitions.Made) error {
	ctx, cancel := context.WithTimeout(ctx, removeTime)
	defer cancel()
	if there, err := made.There(d.Paths); err != nil || !there {
		return err
	}
	if a := d.agent(made.ID); a != nil && a.MountPoint() != "" {
		if err := a.Down(ctx); err != nil {
			return err
		}
	}
	err := made.Remove(d.Paths)
	d.Refresh(scope.ID(""))
	return err
}
