package fleetcmd

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/internal/fleet/order"
	"github.com/scopefs/scopefs/internal/git"
	"github.com/scopefs/scopefs/scope"
)

// TestPlan: a source changes and removes only versions that it has published.
func TestPlan(t *testing.T) {
	def := func(version int64, text string) order.Definition {
		return order.Definition{Name: "b", Version: version, Text: text, Removed: text == ""}
	}
	ours := order.Source{Versions: map[scope.ID][]int64{"b": {1, 2}}}
	want := []order.Definition{{Name: "b", Text: "x"}}
	for name, one := range map[string]struct {
		there  map[scope.ID]seen
		want   []order.Definition
		force  bool
		next   []order.Definition
		same   int
		failed bool
	}{
		"none there":            {want: want, next: want},
		"equal":                 {there: map[scope.ID]seen{"b": {def(1, "x"), true}}, want: want, same: 1},
		"equal, of another key": {there: map[scope.ID]seen{"b": {def(1, "x"), false}}, want: want, next: want},
		"changed":               {there: map[scope.ID]seen{"b": {def(2, "y"), true}}, want: want, next: want},
		"removed by anybody":    {there: map[scope.ID]seen{"b": {def(3, ""), true}}, want: want, next: want},
		"of somebody":           {there: map[scope.ID]seen{"b": {def(3, "y"), true}}, want: want, failed: true},
		"of somebody, equal":    {there: map[scope.ID]seen{"b": {def(3, "x"), true}}, want: want, same: 1},
		"of somebody, forced":   {there: map[scope.ID]seen{"b": {def(3, "y"), true}}, want: want, force: true, next: want},
		"no definition":         {there: map[scope.ID]seen{"b": {}}, want: want, failed: true},
		"gone":                  {there: map[scope.ID]seen{"b": {def(1, "y"), true}}, next: []order.Definition{{Name: "b", Removed: true}}},
		"gone already":          {there: map[scope.ID]seen{"b": {def(2, ""), true}}},
		"gone, of somebody":     {there: map[scope.ID]seen{"b": {def(3, "y"), true}}, force: true},
	} {
		t.Run(name, func(t *testing.T) {
			next, same, err := plan(ours, one.there, one.want, one.force)
			assert.Equal(t, one.failed, err != nil, err)
			assert.Equal(t, one.next, next)
			assert.Equal(t, one.same, same)
		})
	}
	others, _, err := plan(ours, map[scope.ID]seen{"b": {order.Definition{Name: "b", Version: 1, Text: "x", Nodes: []string{"y"}}, true}}, want, false)
	assert.NoError(t, err)
	assert.Equal(t, want, others, "it is for other nodes")
}

// TestKept: a source still owns what another command of it publishes later.
func TestKept(t *testing.T) {
	many := make([]int64, 20)
	for i := range many {
		many[i] = int64(i + 1)
	}
	for name, one := range map[string]struct {
		listed []int64
		there  order.Definition
		want   []int64
	}{
		"there":                {[]int64{1, 2}, order.Definition{Version: 2, Text: "x"}, []int64{2}},
		"not published yet":    {[]int64{1, 2}, order.Definition{Version: 1, Text: "x"}, []int64{1, 2}},
		"none there yet":       {[]int64{2}, order.Definition{}, []int64{2}},
		"removed":              {[]int64{1, 2}, order.Definition{Version: 2, Removed: true}, nil},
		"comes back":           {[]int64{2, 3}, order.Definition{Version: 2, Removed: true}, []int64{3}},
		"of somebody":          {[]int64{1, 2}, order.Definition{Version: 3, Text: "x"}, nil},
		"many that never came": {many, order.Definition{Version: 1, Text: "x"}, append([]int64{1}, many[5:]...)},
	} {
		got := kept(order.Source{Versions: map[scope.ID][]int64{"b": one.listed}}, map[scope.ID]seen{"b": {Definition: one.there}})
		assert.Equal(t, one.want, got["b"], name)
	}
}

func TestCheckText(t *testing.T) {
	for front, ok := range map[string]bool{
		"env: {X: '${SCOPEFS_UNSET}'}": true, "protect: [of-the-node]": true, "skills: [of-the-node]": true, "": true,
		"env: {X: '${SCOPEFS_UNSET}'}\nnone: 1": false, "view: {paths: {'**': everything}}": false,
	} {
		err := checkText(git.File{Name: "b.md", Text: []byte("---\nname: b\ndescription: test\n" + front + "\n---\n")})
		assert.Equal(t, ok, err == nil, "%s: %v", front, err)
	}
	for _, name := range []string{"README.md", "b", "b.yaml", "..md", ".md", "b\n.md"} {
		assert.Error(t, checkText(git.File{Name: name, Text: []byte("---\nname: b\ndescription: test\n---\n")}), name)
	}
}
