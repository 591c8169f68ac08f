package file

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/approvals"
)

const opPreview = "preview"

// previewArgs are the arguments of a call of write_file or edit_file.
type previewArgs struct {
	Write *WriteArgs `json:"write,omitempty"`
	Edit  *EditArgs  `json:"edit,omitempty"`
}

func (a *previewArgs) detach() []byte {
	if a.Write == nil {
		return nil
	}
	return a.Write.detach()
}

func (a *previewArgs) attach(b []byte) error {
	if a.Write == nil {
		if len(b) > 0 {
			return errBlob
		}
		return nil
	}
	return a.Write.attach(b)
}

type previewResult struct {
	Diff    string `json:"diff,omitempty"`
	Cut     int    `json:"cut,omitempty"`
	Note    string `json:"note,omitempty"`
	Content string `json:"content,omitempty"` // hash of the present content
}

// Preview returns the change that a call of write_file or edit_file would make, and
// nothing for other tools. It changes nothing. The error is that of the call.
func (f *Files) Preview(ctx context.Context, tool string, args json.RawMessage) (approvals.Changes, error) {
	var in previewArgs
	var err error
	switch tool {
	case "write_file":
		in.Write = &WriteArgs{}
		err = json.Unmarshal(args, in.Write)
	case "edit_file":
		in.Edit = &EditArgs{}
		err = json.Unmarshal(args, in.Edit)
	default:
		return approvals.Changes{}, nil
	}
	if err != nil {
		return approvals.Changes{}, err
	}
	r, err := do[previewArgs, previewResult](ctx, f, "", operation{opPreview, true}, in)
	if err == nil && r.Content != "" && !hashForm().MatchString(r.Content) {
		err = fmt.Errorf("file worker: no hash: %q", r.Content)
	}
	return approvals.Changes{Diff: r.Diff, Cut: r.Cut, Note: r.Note, Content: r.Content}, err
}

func (t *tree) preview(_ context.Context, in previewArgs) (previewResult, error) {
	switch {
	case in.Write != nil:
		return t.previewWrite(*in.Write)
	case in.Edit != nil:
		e, err := t.plan(*in.Edit)
		if err != nil {
			return previewResult{}, err
		}
		return previewResult{Content: hashOf(e.before)}.of(e.p.rel, e.old, e.text.s), nil
	}
	return previewResult{}, tools.Errorf(tools.Invalid, "no call")
}

func (t *tree) previewWrite(in WriteArgs) (r previewResult, err error) {
	p, err := t.at(in.Path, writing)
	if err != nil {
		return r, err
	}
	target, there, err := t.target(p)
	if err != nil {
		return r, err
	}
	var before []byte
	if there {
		if in.Mode == ModeCreate {
			return r, problem(tools.Conflict, p.rel, "exists already", "")
		}
		before, err = t.whole(target, writing)
		if isCode(err, tools.TooLarge) { // the approval is bound to the hash
			var h hashResult
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
	if in.Mode == modeAppend {
		after = append(bytes.Clone(before), after...)
	}
	if !isText(before) {
		r.Note = fmt.Sprintf("the file is binary, %d bytes: no diff is made", len(before))
		return r, nil
	}
	if there && bytes.Equal(before, after) {
		r.Note = "the file has this content already"
	}
	return r.of(p.rel, string(before), string(after)), nil
}

// of adds the diff of two contents.
func (r previewResult) of(name, before, after string) previewResult {
	r.Diff = unifiedDiff(name, before, after)
	if cut := len(r.Diff) - maxDiff; cut > 0 {
		r.Diff, r.Cut = cutText(r.Diff, maxDiff), cut
	}
	return r
}
