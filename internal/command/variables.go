package command

import (
	"fmt"
	"maps"
	"os"
	"strings"

	"github.com/scopefs/scopefs/internal/bounded"
)

// maxEnvFile bounds a file of variables, in bytes.
const maxEnvFile = 1 << 20

// Variables are variables for a command. They reach it without being an argument of any
// process, unless the user writes -e NAME=VALUE.
type Variables struct {
	Set   []string // NAME=VALUE, or NAME for the value that it has here
	Files []string // of such lines
}

// Read returns the variables. Its errors name no value, which may be a secret.
func (v Variables) Read() (map[string]string, error) {
	env := map[string]string{}
	for _, name := range v.Files {
		more, err := readEnvFile(name)
		if err != nil {
			return nil, fmt.Errorf("--env-file %q: %w", name, err)
		}
		maps.Copy(env, more)
	}
	for _, text := range v.Set {
		if err := setVariable(env, text); err != nil {
			return nil, fmt.Errorf("--env: %w", err)
		}
	}
	return env, nil
}

// setVariable sets NAME=VALUE, or NAME to the value that it has here.
func setVariable(env map[string]string, text string) error {
	name, value, ok := strings.Cut(text, "=")
	if name == "" || strings.ContainsAny(name, " \t\x00") {
		return fmt.Errorf("%q is no name of a variable: write NAME=VALUE or NAME", name)
	}
	if !ok {
		if value, ok = os.LookupEnv(name); !ok {
			return fmt.Errorf("%s is not set here: set it, or write NAME=VALUE", name)
		}
	}
	if strings.ContainsRune(value, 0) {
		return fmt.Errorf("the value of %s holds a NUL: remove it", name)
	}
	env[name] = value
	return nil
}

// readEnvFile reads the form of docker's --env-file: lines with NAME=VALUE or NAME, empty
// ones, and comments after #. A value is what follows the sign, quotes included.
func readEnvFile(name string) (map[string]string, error) {
	text, err := bounded.File(name, maxEnvFile)
	if err != nil {
		return nil, err
	}
	env := map[string]string{}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line = strings.TrimLeft(strings.TrimRight(line, "\r\n"), " \t")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if setVariable(env, line) != nil { // its error quotes the line, which may be one of a secret
			return nil, fmt.Errorf("line %d: want NAME=VALUE in one line, or the NAME of a variable that is set here", number)
		}
	}
	return env, nil
}
