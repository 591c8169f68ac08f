package driver

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/scopefs/scopefs/internal/peer"
)

// A Method is a method with the types of its value and its result. The text is its name.
type Method[In, Out any] string

// Call calls the method at the other end.
func (m Method[In, Out]) Call(ctx context.Context, c *Conn, in In) (out Out, err error) {
	value, err := json.Marshal(in)
	if err != nil {
		return out, err
	}
	answer, err := c.call(ctx, string(m), value)
	if err != nil {
		return out, err
	}
	if err := peer.Decode(answer, &out); err != nil {
		c.Close() // it is not the program that we know
		return out, fmt.Errorf("%s: %w: %w", m, ErrLost, err)
	}
	return out, nil
}

// Handle adds the function that runs the method.
func (m Method[In, Out]) Handle(to Handlers, f func(context.Context, In) (Out, error)) {
	to[string(m)] = func(ctx context.Context, value []byte) (any, error) {
		var in In
		if err := peer.Decode(value, &in); err != nil {
			return nil, fmt.Errorf("%s: %w", m, err)
		}
		return f(ctx, in)
	}
}

// None is the value, or the result, of a method without one.
type None struct{}
