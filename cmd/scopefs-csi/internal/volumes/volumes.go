// Package volumes gives pods the views of agents, and takes them away. The daemon records that a pod gets a view before it gets
// it, and that it loses one afterwards: that waits for no daemon. What is mounted is in a file, for the next process.
package volumes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/scopefs/scopefs/cmd/scopefs-csi/internal/rules"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope"
)

// The bounds of waits. Kubelet waits for two minutes, and then repeats its request.
const (
	publishTime = 30 * time.Second // for the daemon, to mount a view
	recordTime  = 15 * time.Second // for the daemon, to record, and to end a view that no pod has
	lookTime    = time.Second      // between two looks whether a view or a pod is another one
)

// Config is where things are.
type Config struct {
	Rules string // the file of the operator's rules, read at each publish
	Pods  string // kubelet's directory of all pods
	State string // the directory of the plugin's own file
	Log   *slog.Logger
}

// Volumes are the volumes of a node's pods.
type Volumes struct {
	Config
	daemon *api.Client
	table  *table
}

// Open returns the volumes that an earlier process has left.
func Open(c Config, daemon *api.Client) (*Volumes, error) {
	if _, err := rules.Load(c.Rules); err != nil {
		return nil, err
	}
	t, err := openTable(c.State)
	if err != nil {
		return nil, err
	}
	return &Volumes{c, daemon, t}, nil
}

// ErrBusy is the error of a request beside another one for the same volume or agent. Kubelet repeats it.
var ErrBusy = errors.New("another request for the volume or its agent runs")

// InvalidError is the error of a request that cannot succeed, whatever the rules say.
type InvalidError struct{ Err error }

func (e *InvalidError) Error() string { return e.Err.Error() }
func (e *InvalidError) Unwrap() error { return e.Err }

// Request is a volume that kubelet wants a pod to have.
type Request struct {
	Volume   string // the id
	Target   string
	Pod      rules.Pod
	Agent    string // this and Narrow are what the pod's author wrote
	Narrow   string
	ReadOnly bool
}

// Publish gives the pod the view of the agent. A pod that has it gets nothing new. The error is *rules.Refused,
// *InvalidError, ErrBusy, or another, after which the same request may succeed.
func (s *Volumes) Publish(ctx context.Context, r Request) error {
	ctx, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()
	t, err := targetOf(s.Pods, r.Target)
	if err == nil && t.uid != r.Pod.UID {
		err = fmt.Errorf("target path %q: is not of the pod %s", r.Target, r.Pod.UID)
	}
	if err != nil {
		return &InvalidError{err}
	}
	v := api.PodVolume{ID: r.Volume, Agent: r.Agent, Pod: r.Pod.Namespace + "/" + r.Pod.Name, UID: r.Pod.UID, Account: r.Pod.Account, Target: r.Target, ReadOnly: r.ReadOnly}
	id, err := s.decide(&v, r)
	if err != nil {
		s.record(ctx, api.VolumeRequest{Do: api.RefuseVolume, Volume: v, Reason: err.Error()})
		return err
	}
	free, ok := s.table.lock("volume "+v.ID, "agent "+v.Agent)
	if !ok {
		return ErrBusy
	}
	defer free()
	switch old, there := s.table.get(v.ID); {
	case there && old != v:
		return &InvalidError{fmt.Errorf("volume %s is published otherwise, for the pod %s at %q: unpublish it first", v.ID, old.Pod, old.Target)}
	case there:
		if shown, err := t.shows(); err != nil || shown != "" {
			return err // look binds what is another view by now
		}
	}
	if err := s.table.put(v); err != nil {
		return err
	}
	reply, err := s.daemon.Volume(ctx, api.VolumeRequest{Do: api.PublishVolume, Volume: v})
	if err == nil {
		_, err = t.bind(reply.Mount, id, v.ReadOnly)
	}
	if err != nil {
		return errors.Join(err, s.remove(context.WithoutCancel(ctx), v, t, "failed: "+err.Error()))
	}
	s.Log.Info("published", "agent", v.Agent, "pod", v.Pod, "volume", v.ID)
	return nil
}

// decide completes a volume as the rules say.
func (s *Volumes) decide(v *api.PodVolume, r Request) (scope.ID, error) {
	id, err := scope.ParseID(r.Agent)
	if err != nil {
		return "", &InvalidError{err}
	}
	all, err := rules.Load(s.Rules)
	if err != nil {
		return "", err
	}
	rule, err := all.Find(r.Pod, id)
	if err != nil {
		return "", err
	}
	v.ReadOnly = v.ReadOnly || rule.ReadOnly
	if v.Definition, err = rule.Text(id); err != nil || r.Narrow == "" {
		return id, err
	}
	if err := rules.CheckNarrow(r.Narrow); err != nil {
		return "", &InvalidError{fmt.Errorf("definition: %w", err)}
	}
	if v.Definition == "" {
		return "", &InvalidError{fmt.Errorf("definition: the operator's rules make none for the agent %q: remove the attribute", id)}
	}
	v.Narrow = r.Narrow
	return id, nil
}

// Unpublish takes the view from the pod. It needs no daemon, and waits for no process that serves a view.
func (s *Volumes) Unpublish(ctx context.Context, volume, at string) error {
	t, err := targetOf(s.Pods, at)
	if err != nil {
		return &InvalidError{err}
	}
	v, there := s.table.get(volume)
	if !there || v.Target != at { // a process before has done it, or has lost its file
		v = api.PodVolume{ID: volume, Target: at}
	}
	names := []string{"volume " + volume}
	if v.Agent != "" {
		names = append(names, "agent "+v.Agent)
	}
	free, ok := s.table.lock(names...)
	if !ok {
		return ErrBusy
	}
	defer free()
	return s.remove(ctx, v, t, "")
}

// remove unmounts a volume, has the daemon record that, and forgets it. What no daemon has recorded stays in the table:
// look repeats it. The caller has locked the volume and its agent.
func (s *Volumes) remove(ctx context.Context, v api.PodVolume, t target, reason string) error {
	if err := t.release(); err != nil {
		return err
	}
	if v.Agent == "" {
		return nil
	}
	if !s.record(ctx, api.VolumeRequest{Do: api.UnpublishVolume, Volume: v, Reason: reason, Last: !s.table.others(v)}) {
		return nil
	}
	return s.table.remove(v.ID)
}

// record has the daemon record and do something, and reports whether it did.
func (s *Volumes) record(ctx context.Context, req api.VolumeRequest) bool {
	ctx, cancel := context.WithTimeout(ctx, recordTime)
	defer cancel()
	_, err := s.daemon.Volume(ctx, req)
	if err != nil {
		s.Log.Warn("the daemon has not recorded it", "do", req.Do, "agent", printable.Text(req.Volume.Agent), "pod", req.Volume.Pod, "err", err)
	}
	return err == nil
}

// Watch looks after the volumes until ctx ends.
func (s *Volumes) Watch(ctx context.Context) {
	for {
		s.look(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(lookTime):
		}
	}
}

// look binds views anew that have been mounted anew, and removes what a crash has left of pods that are gone.
func (s *Volumes) look(ctx context.Context) {
	list := s.table.list()
	if len(list) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()
	views, err := s.daemon.Agents(ctx)
	if err != nil {
		return // the next look is in a second
	}
	at := map[string]string{}
	for _, a := range views {
		if a.State == api.Mounted {
			at[string(a.ID)] = a.Mount
		}
	}
	for _, v := range list {
		if free, ok := s.table.lock("volume "+v.ID, "agent "+v.Agent); ok {
			s.lookAt(ctx, v, at[v.Agent])
			free()
		}
	}
}

func (s *Volumes) lookAt(ctx context.Context, v api.PodVolume, view string) {
	if now, there := s.table.get(v.ID); !there || now != v {
		return
	}
	t, err := targetOf(s.Pods, v.Target)
	if err != nil { // of another --pods
		s.Log.Error("volume", "volume", v.ID, "err", err)
		return
	}
	shown, err := t.shows()
	switch {
	case err != nil:
	case t.podGone():
		err = s.remove(ctx, v, t, "its pod is gone")
	case shown == "": // unpublished without a daemon; after a boot kubelet publishes it again
		err = s.remove(ctx, v, t, "is mounted no more")
	case view != "":
		var again bool
		if again, err = t.bind(view, scope.ID(v.Agent), v.ReadOnly); again {
			s.record(ctx, api.VolumeRequest{Do: api.RebindVolume, Volume: v, Reason: "the view was mounted anew"})
		}
	}
	if err != nil {
		s.Log.Error("volume", "agent", v.Agent, "pod", v.Pod, "err", err)
	}
}
