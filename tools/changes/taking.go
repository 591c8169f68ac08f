package changes

import (
	"errors"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/file"
)

// AddTaking adds a change of a commit to what is taken over.
func AddTaking(t *file.Taking, c *history.Change) error {
	if c == nil {
		return errors.New("an entry of a commit is no change")
	}
	path, err1 := audit.Unescape(c.Path)
	from, err2 := audit.Unescape(c.From)
	switch {
	case c.Type == "other" && c.Kind != history.Deleted:
		return tools.Errorf(tools.Conflict, "nothing was taken: %s is no file, directory or link", tools.Quote(c.Path)).
			Suggest("give paths without it")
	case c.Kind == history.Deleted:
		t.Gone = append(t.Gone, path)
	case c.Kind == history.Renamed && c.Type == "directory":
		t.Moved = append(t.Moved, file.Move{From: from, To: path})
		if c.Mode {
			t.There = append(t.There, path)
		}
	default:
		if c.Kind == history.Renamed {
			t.Gone = append(t.Gone, from)
		}
		t.There = append(t.There, path)
	}
	return errors.Join(err1, err2)
}
