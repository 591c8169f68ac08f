package login

import (
	"bytes"
	"encoding/json"
	"strings"
)

// object is an object of JSON. Its numbers are json.Number: a file is written as it was read.
type object map[string]any

func parse(text []byte) (o object, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	err = d.Decode(&o)
	return o, err
}

// get returns what is at a path of names with dots between them.
func (o object) get(path string) (v any, ok bool) {
	name, rest, deeper := strings.Cut(path, ".")
	if v, ok = o[name]; !ok || !deeper {
		return v, ok
	}
	inner, _ := v.(map[string]any)
	return object(inner).get(rest)
}

func (o object) text(path string) string {
	v, _ := o.get(path)
	s, _ := v.(string)
	return s
}

func (o object) number(path string) int64 {
	v, _ := o.get(path)
	n, _ := v.(json.Number)
	f, _ := n.Float64()
	return int64(f)
}

// set sets what is at a path, and makes the objects on the way.
func (o object) set(path string, v any) {
	name, rest, deeper := strings.Cut(path, ".")
	if !deeper {
		o[name] = v
		return
	}
	inner, ok := o[name].(map[string]any)
	if !ok {
		inner = map[string]any{}
		o[name] = inner
	}
	object(inner).set(rest, v)
}
