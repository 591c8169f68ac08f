package api

import (
	"context"
	"net/http"

	"github.com/scopefs/scopefs/scope"
)

// PodVolume is the view of an agent that a pod has, or wants.
type PodVolume struct {
	ID       string `json:"volume"` // as kubelet names it
	Agent    string `json:"agent"`  // as the pod's author wrote it: it may be no id
	Pod      string `json:"pod"`    // NAMESPACE/NAME, as kubelet says
	UID      string `json:"uid"`    // of the pod, likewise
	Account  string `json:"account"`
	Target   string `json:"target"` // where the pod's containers get it from
	ReadOnly bool   `json:"read_only,omitempty"`

	// Definition is the text of the agent's definition, which is made for pods; "": the operator has written one in agents.d.
	Definition string `json:"definition,omitempty"`
	Narrow     string `json:"narrow,omitempty"` // keys that narrow it, as a repository's own rules do: see agents.TrustedName

	From string `json:"from,omitempty"` // the definition of the operator's that Narrow is the text of, which may become another; "": none
}

// VolumeRequest is the body of POST /v1/volumes.
type VolumeRequest struct {
	Do     VolumeOp  `json:"do"`
	Volume PodVolume `json:"volume"`
	Reason string    `json:"reason,omitempty"` // for the log
	Last   bool      `json:"last,omitempty"`   // of Unpublish: no other pod has the agent, and what was made for pods is removed
}

// VolumeOp is what happens to a volume.
type VolumeOp string

// The operations. The daemon records each before it does anything.
const (
	PublishVolume   VolumeOp = "publish"   // makes the definition, if it has a text, and mounts the view
	RefuseVolume    VolumeOp = "refuse"    // records
	RebindVolume    VolumeOp = "rebind"    // records that the pod gets a new view of the agent
	NarrowVolume    VolumeOp = "narrow"    // puts another text of From in force, unless it does not load: then the last one stays
	UnpublishVolume VolumeOp = "unpublish" // records; see Last
)

// VolumeReply is the answer.
type VolumeReply struct {
	Mount string `json:"mount,omitempty"` // of PublishVolume: where the view is
}

// Volume records what happens to a volume of a pod, and does the daemon's part of it.
func (c *Client) Volume(ctx context.Context, req VolumeRequest) (VolumeReply, error) {
	return fetch[VolumeReply](ctx, c, http.MethodPost, "/v1/volumes", req)
}

// AgentID returns the id of the agent.
func (v PodVolume) AgentID() (scope.ID, error) { return scope.ParseID(v.Agent) }
