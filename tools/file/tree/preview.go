package tree

import (
	"bytes"
	"context"
	"fmt"

	"github.com/scopefs/scopefs/tools/file/message"
)

func (t *tree) preview(_ context.Context, in message.PreviewArgs) (message.PreviewResult, error) {
	switch {
	case in.Write != nil:
		return t.previewWrite(*in.Write)
	case in.Edit != nil:
		e, err := t.plan(*in.Edit)
		if err != nil {
			return message.PreviewResult{}, err
		}
		return withDiff(message.PreviewResult{Content: hashOf(e.before)}, e.p.rel, e.old, e.text.s), nil
	}
	return message.PreviewResult{}, message.Errorf(message.Invalid, "no call")
}

func (t *tree) previewWrite(in message.WriteArgs) (r message.PreviewResult, err error) {
	p, err := t.at(in.Path, message.Writing)
	if err != nil {
		return r, err
	}
	target, there, err := t.target(p)
	if err != nil {
		return r, err
	}
	var before []byte
	if there {
		if in.Mode == message.ModeCreate {
			return r, message.Problem(message.Conflict, p.rel, "exists already", "")
		}
		before, err = t.whole(target, message.Writing)
		if isCode(err, message.TooLarge) { // the approval is bound to the hash
			var h message.HashResult
			if h, err = t.hashOf(context.Background(), target, false); err == nil {
				r.Content, r.Note = h.Hash, fmt.Sprintf("the file is larger than %d bytes: no diff is made", maxWhole)
			}
			return r, err
		}
		if err != nil {
			return r, err
		}
		r.Content = hashOf(before)
	}
	after := []byte(in.Content)
	if in.Mode == message.ModeAppend {
		after = append(bytes.Clone(before), after...)
	}
	if !isText(before) {
		r.Note = fmt.Sprintf("the file is binary, %d bytes: no diff is made", len(before))
		return r, nil
	}
	if there && bytes.Equal(before, after) {
		r.Note = "the file has this content already"
	}
	return withDiff(r, p.rel, string(before), string(after)), nil
}

// withDiff adds the diff of two contents.
func withDiff(r message.PreviewResult, name, before, after string) message.PreviewResult {
	r.Diff = message.Unified(name, before, after)
	if cut := len(r.Diff) - message.MaxDiff; cut > 0 {
		r.Diff, r.Cut = message.Cut(r.Diff, message.MaxDiff), cut
	}
	return r
}
