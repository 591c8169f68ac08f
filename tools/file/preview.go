package file

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/scopefs/scopefs/tools/approvals"
	"github.com/scopefs/scopefs/tools/file/message"
)

// Preview returns the change that a call of write_file or edit_file would make, and
// nothing for other tools. It changes nothing. The error is that of the call.
func (f *Files) Preview(ctx context.Context, tool string, args json.RawMessage) (approvals.Changes, error) {
	var in message.PreviewArgs
	var err error
	switch tool {
	case "write_file":
		in.Write = &message.WriteArgs{}
		err = json.Unmarshal(args, in.Write)
	case "edit_file":
		in.Edit = &message.EditArgs{}
		err = json.Unmarshal(args, in.Edit)
	default:
		return approvals.Changes{}, nil
	}
	if err != nil {
		return approvals.Changes{}, err
	}
	r, err := do[message.PreviewArgs, message.PreviewResult](ctx, f, "", operation{message.OpPreview, true}, in)
	if err == nil && r.Content != "" && !hashForm().MatchString(r.Content) {
		err = fmt.Errorf("file worker: no hash: %q", r.Content)
	}
	return approvals.Changes{Diff: r.Diff, Cut: r.Cut, Note: r.Note, Content: r.Content}, err
}
