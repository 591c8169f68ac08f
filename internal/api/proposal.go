package api

import (
	"context"
	"net/http"
)

// Proposal is a text of a repository or of a program that is not in force until the operator accepts it.
type Proposal struct {
	ID     string   `json:"id"`                // Repository, or StoreProposal and the name of a store
	File   string   `json:"file"`              // that has the text; of a store the command of its program
	Hash   string   `json:"hash"`              // SHA-256 of Text; "": the file is gone, and what was accepted stays in force
	Text   string   `json:"text"`              // what is proposed
	Last   string   `json:"trusted,omitempty"` // SHA-256 of Before; "": nothing is in force
	Before string   `json:"before,omitempty"`  // what is in force
	Diff   string   `json:"diff,omitempty"`    // of Before and Text
	Widens []string `json:"widens"`            // what it allows beyond the operator's own definition
	Agents []string `json:"agents"`            // whom it concerns
	Error  string   `json:"unfit,omitempty"`   // why it cannot be accepted
	Waits  bool     `json:"waits"`             // it is not in force, and the operator has not denied it
	Shown  string   `json:"shown"`             // identifies all of this
}

// The ids of proposals.
const (
	Repository    = "repository"
	StoreProposal = "store "
)

// Decisions about a proposal.
const (
	AcceptProposal = "accept"
	DenyProposal   = "deny"
	RevokeProposal = "revoke" // takes what is in force out of force, whatever is proposed
)

// ProposalRequest is the body of a decision about a proposal. If Hash or Shown is not that of the proposal, the answer is a
// Conflict. To accept one takes its Hash at least.
type ProposalRequest struct {
	ID    string  `json:"id"`
	Do    string  `json:"do"`
	Hash  *string `json:"hash,omitempty"`
	Shown string  `json:"shown,omitempty"`
	As    string  `json:"as,omitempty"` // for the log: see DecideRequest
}

// ProposalReply is the proposal as it was decided about.
type ProposalReply struct {
	Proposal
	Reloaded []Reloaded `json:"reloaded,omitempty"`
}

// Fits returns an error unless a request is about a proposal.
func (p Proposal) Fits(req ProposalRequest) error {
	switch {
	case req.Do != AcceptProposal && req.Do != DenyProposal:
		return &Error{Kind: Invalid, Text: "do: give accept or deny"}
	case req.Hash == nil:
		return &Error{Kind: Invalid, Text: "hash: it is missing: give that of the text that was shown"}
	case *req.Hash != p.Hash:
		return &Error{Kind: Conflict, Text: p.File + ": its hash is " + p.Hash + ", not that of --hash: read it again"}
	case req.Shown != "" && req.Shown != p.Shown:
		return &Error{Kind: Conflict, Text: p.File + ": what it would do is not what was shown: read it again"}
	case req.Do == AcceptProposal && p.Error != "":
		return &Error{Kind: Other, Text: p.Error}
	}
	return nil
}

// Proposals lists what is proposed, also what is in force or denied.
func (c *Client) Proposals(ctx context.Context) ([]Proposal, error) {
	return fetch[[]Proposal](ctx, c, http.MethodGet, "/v1/proposals", none{})
}

// DecideProposal accepts or denies what is proposed, or takes it out of force.
func (c *Client) DecideProposal(ctx context.Context, req ProposalRequest) (ProposalReply, error) {
	return fetch[ProposalReply](ctx, c, http.MethodPost, "/v1/proposals", req)
}
