package cli

import (
	"errors"
	"fmt"
	"io"
	"os"

	scoped "github.com/scopefs/scopefs/scope/context"
)

// readContext reads and checks the file of --context; "" is no context.
func readContext(name string) ([]byte, *scoped.Environment, error) {
	if name == "" {
		return nil, nil, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, &exitError{exitUsage, err}
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, scoped.MaxBytes+1))
	if err != nil {
		return nil, nil, err
	}
	env, bad := scoped.Parse(text)
	if bad != nil {
		return nil, nil, &exitError{exitUsage, fmt.Errorf("%s: %w", name, errors.New(bad.Error()))}
	}
	return text, env, nil
}
