// Package volumes gives pods the views of agents, and takes them away. The daemon records that a pod gets a view before it gets
// it, and that it loses one afterwards: that waits for no daemon. What is mounted is in a file, for the next process.
package volumes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
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
	lookTime    = time.Second      // between two looks whether a view, a pod or a definition is another one
	againTime   = time.Minute      // between two attempts to put the same text of a definition in force
)

// Config is where things are.
type Config struct {
	Rules       string // the file of the operator's rules, read at each publish
	Definitions rules.Definitions
	Pods        string // kubelet's directory of all pods
	State       string // the directory of the plugin's own file
	Log         *slog.Logger
}

// Volumes are the volumes of a node's pods.
type Volumes struct {
	Config
	daemon daemon
	table  *table

	tried attempts // of follow
}

// daemon is an *api.Client.
type daemon interface {
	Agents(ctx context.Context) ([]api.Agent, error)
	Volume(ctx context.Context, req api.VolumeRequest) (api.VolumeReply, error)
}

// tried is a text of a definition that the daemon got.
type tried struct {
	text string
	err  string // why it is not in force
	at   time.Time
}

// attempts has the last text of each agent's definition.
type attempts struct {
	mu  sync.Mutex // guards all
	all map[string]tried
}

func (a *attempts) get(agent string) (last tried, there bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	last, there = a.all[agent]
	return last, there
}

func (a *attempts) put(agent string, last tried) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all == nil {
		a.all = map[string]tried{}
	}
	a.all[agent] = last
}

// keep forgets the agents that f does not report.
func (a *attempts) keep(f func(agent string) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.all, func(agent string, _ tried) bool { return !f(agent) })
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
	return &Volumes{Config: c, daemon: daemon, table: t}, nil
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
	Agent    string // this, Narrow and From are what the pod's author wrote
	Narrow   string
	From     string
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
	v := api.PodVolume{ID: r.Volume, Agent: r.Agent, Pod: r.Pod.Namespace + "/" + r.Pod.Name, UID: r.Pod.UID,
		Account: r.Pod.Account, Target: r.Target, ReadOnly: r.ReadOnly}
	id, text, err := s.decide(&v, r)
	if err != nil {
		s.record(ctx, api.VolumeRequest{Do: api.RefuseVolume, Volume: v, Reason: err.Error()})
		return err
	}
	free, ok := s.table.lockSoon(ctx, "volume "+v.ID, "agent "+v.Agent)
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
	reply, err := s.daemon.Volume(ctx, api.VolumeRequest{Do: api.PublishVolume, Volume: withText(v, text)})
	if err == nil {
		_, err = t.bind(reply.Mount, id, v.ReadOnly)
	}
	if err != nil && v.From != "" {
		err = fmt.Errorf("with the definition %s: %w", v.From, err)
	}
	if err != nil {
		return errors.Join(err, s.remove(context.WithoutCancel(ctx), v, t, "failed: "+err.Error()))
	}
	s.Log.Info("published", "agent", v.Agent, "pod", v.Pod, "volume", v.ID)
	return nil
}

// withText returns the volume with the text of its definition as it is now. In the table it has none: the text may change.
func withText(v api.PodVolume, text string) api.PodVolume {
	if v.From != "" {
		v.Narrow = text
	}
	return v
}

// decide completes a volume as the rules say. text is that of the definition that the pod names.
func (s *Volumes) decide(v *api.PodVolume, r Request) (id scope.ID, text string, err error) {
	if id, err = scope.ParseID(r.Agent); err == nil && r.From != "" {
		err = rules.CheckName(r.From)
	}
	if err != nil {
		return "", "", &InvalidError{err}
	}
	all, err := rules.Load(s.Rules)
	if err != nil {
		return "", "", err
	}
	rule, err := all.Find(r.Pod, id)
	if err != nil {
		return "", "", err
	}
	v.ReadOnly = v.ReadOnly || rule.ReadOnly
	v.Narrow, v.From = r.Narrow, r.From
	if v.Definition, err = rule.Text(id, r.From); err != nil {
		return "", "", err
	}
	switch {
	case r.From != "" && r.Narrow != "":
		err = errors.New("definition, definitionFrom: both narrow: remove one")
	case rule.Narrowed() && r.From == "":
		err = fmt.Errorf("definitionFrom: is missing: the rule gives the agent %q with one of %s", id, strings.Join(rule.Definitions, " "))
	case (r.From != "" || r.Narrow != "") && !rule.Makes():
		err = fmt.Errorf("definition: the operator's rules make none for the agent %q: remove the attribute", id)
	case r.Narrow != "":
		if err = rules.CheckNarrow(r.Narrow); err != nil {
			err = fmt.Errorf("definition: %w", err)
		}
	case r.From != "" && !rule.Lets(r.From):
		return "", "", &rules.Refused{Pod: r.Pod, Agent: r.Agent, Definition: r.From}
	case r.From != "":
		text, err := s.Definitions.Read(r.From)
		return id, text, err
	}
	if err != nil {
		return "", "", &InvalidError{err}
	}
	return id, "", nil
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
	free, ok := s.table.lockSoon(ctx, names...)
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
	var looks sync.WaitGroup
	defer looks.Wait()
	for {
		s.look(ctx, &looks)
		select {
		case <-ctx.Done():
			return
		case <-time.After(lookTime):
		}
	}
}

// look binds views anew that have been mounted anew, and removes what a crash has left of pods that are gone. It does so for
// each agent in a goroutine of its own, and waits for none: the next look leaves out an agent that is busy.
func (s *Volumes) look(ctx context.Context, looks *sync.WaitGroup) {
	list := s.table.list()
	if len(list) == 0 {
		return
	}
	listing, cancel := context.WithTimeout(ctx, publishTime)
	views, err := s.daemon.Agents(listing)
	cancel()
	if err != nil {
		return // the next look is in a second
	}
	at := map[string]string{}
	for _, a := range views {
		if a.State == api.Mounted {
			at[string(a.ID)] = a.Mount
		}
	}
	of := map[string][]api.PodVolume{}
	for _, v := range list {
		of[v.Agent] = append(of[v.Agent], v)
	}
	s.tried.keep(func(agent string) bool { return at[agent] != "" && of[agent] != nil })
	for agent, volumes := range of {
		if free, ok := s.table.lock("look at " + agent); ok {
			looks.Go(func() {
				defer free()
				ctx, cancel := context.WithTimeout(ctx, publishTime)
				defer cancel()
				s.lookAtAll(ctx, volumes, at[agent])
			})
		}
	}
}

// lookAtAll looks at the volumes of an agent, whose view is mounted at a path, or at none.
func (s *Volumes) lookAtAll(ctx context.Context, volumes []api.PodVolume, view string) {
	followed := view == ""
	for _, v := range volumes {
		free, ok := s.table.lock("volume "+v.ID, "agent "+v.Agent)
		if !ok {
			continue
		}
		s.lookAt(ctx, v, view)
		if v.From != "" && !followed {
			s.follow(ctx, v)
			followed = true
		}
		free()
	}
}

// follow puts the text of the definition in force that the volumes of an agent name. What cannot be read, or does not load,
// leaves the last one in force.
func (s *Volumes) follow(ctx context.Context, v api.PodVolume) {
	if now, there := s.table.get(v.ID); !there || now != v {
		return
	}
	last, there := s.tried.get(v.Agent)
	text, err := s.Definitions.Read(v.From)
	if err == nil {
		if there && last.text == text && (last.err == "" || time.Since(last.at) < againTime) {
			return
		}
		_, err = s.daemon.Volume(ctx, api.VolumeRequest{Do: api.NarrowVolume, Volume: withText(v, text)})
	}
	now := tried{text: text, at: time.Now()}
	if err != nil {
		if now.err = err.Error(); now.err != last.err {
			s.Log.Error("the last definition holds", "definition", v.From, "agent", v.Agent, "err", err)
		}
	}
	s.tried.put(v.Agent, now)
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
