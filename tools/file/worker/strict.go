package worker

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

// Strict decodes one JSON value into v. An unknown field is an error.
func Strict(b []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one value")
	}
	return nil
}
