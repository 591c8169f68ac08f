package agents

import (
	"reflect"
	"slices"
	"strings"
)

// Differs returns the keys whose values differ in two definitions, such as view.changes, sorted. A mapping other than view,
// history and limits is one key. A field of Reach has its own name, which need not be a key.
func (d *Definition) Differs(from *Definition) []string {
	keys := differs("", reflect.ValueOf(*d), reflect.ValueOf(*from))
	slices.Sort(keys)
	return slices.Compact(keys)
}

// below are the structs whose fields are keys of their own.
var below = []reflect.Type{reflect.TypeFor[ViewSpec](), reflect.TypeFor[History](), reflect.TypeFor[Limits](), reflect.TypeFor[Reach]()}

// differs compares the exported fields of two structs. The others are empty once a definition has loaded. A field has the name
// of its key, but for upper case, unless its tag names the key.
func differs(prefix string, a, b reflect.Value) (keys []string) {
	for i := range a.NumField() {
		f := a.Type().Field(i)
		if !f.IsExported() {
			continue
		}
		key := f.Tag.Get("key")
		if key == "" {
			key = strings.ToLower(f.Name)
		}
		switch {
		case f.Anonymous:
			keys = append(keys, differs(prefix, a.Field(i), b.Field(i))...)
		case slices.Contains(below, f.Type):
			keys = append(keys, differs(prefix+key+".", a.Field(i), b.Field(i))...)
		case !reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()):
			keys = append(keys, prefix+key)
		}
	}
	return keys
}
