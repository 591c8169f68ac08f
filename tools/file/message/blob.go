package message

import "errors"

// A Detacher has bytes that are sent beside its JSON.
type Detacher interface{ Detach() []byte }

// An Attacher takes the bytes that were sent beside its JSON.
type Attacher interface{ Attach([]byte) error }

var errBlob = errors.New("bytes beside a value that has none")

// Attach adds the bytes sent beside a JSON value to the value. Only an [Attacher] may have them.
func Attach(v any, blob []byte) error {
	if a, ok := v.(Attacher); ok {
		return a.Attach(blob)
	}
	if len(blob) > 0 {
		return errBlob
	}
	return nil
}

// Detach returns the bytes of a value that are sent beside its JSON, and removes them from the value.
func Detach(v any) []byte {
	if d, ok := v.(Detacher); ok {
		return d.Detach()
	}
	return nil
}

// Detach removes the content: it is sent beside the JSON.
func (r *ReadResult) Detach() []byte {
	b := r.Data
	if r.MIME == "" {
		b, r.Text = []byte(r.Text), ""
	}
	return b
}

// Attach adds the content.
func (a *WriteArgs) Attach(b []byte) error {
	a.Content = string(b)
	return nil
}

// Detach removes the content of a new file.
func (a *PreviewArgs) Detach() []byte {
	if a.Write == nil {
		return nil
	}
	b := []byte(a.Write.Content)
	a.Write.Content = ""
	return b
}

// Attach adds the content of a new file.
func (a *PreviewArgs) Attach(b []byte) error {
	if a.Write == nil {
		if len(b) > 0 {
			return errBlob
		}
		return nil
	}
	return a.Write.Attach(b)
}
