package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// gridFile is the path of a file that makeGrid makes.
func gridFile(top string, dir, i int) string {
	return filepath.Join(top, fmt.Sprintf("d%04d", dir), fmt.Sprintf("f%06d", i))
}

// makeGrid makes directories of equally many files of one size.
func makeGrid(args arguments) error {
	var dirs, files, size int
	if err := args.numbers(&dirs, &files, &size); err != nil {
		return err
	}
	content := make([]byte, size)
	for d := range dirs {
		if err := os.MkdirAll(filepath.Dir(gridFile(args[3], d, 0)), 0o755); err != nil {
			return err
		}
		for i := range files {
			if err := os.WriteFile(gridFile(args[3], d, i), content, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// rewrite opens each of the files 1, 2, … of a directory for writing, writes a byte and closes it.
func rewrite(args arguments) error {
	var count int
	if err := args.numbers(&count); err != nil {
		return err
	}
	for i := range count {
		f, err := os.OpenFile(filepath.Join(args[1], strconv.Itoa(i+1)), os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteString("x")
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// makeTree makes a tree like that of a program's source, the same each time:
// directories three deep, texts of some kilobytes and now and then a long one.
// One in a hundred holds a word to search for.
func makeTree(args arguments) error {
	var files, dirs int
	if err := args.numbers(&files, &dirs); err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range files {
		d := i % max(dirs, 1)
		name := filepath.Join(args[2], fmt.Sprintf("area%d/part%02d/dir%04d/file%05d.txt", d%7, d%43, d, i))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		size := int(min(2000*math.Exp(random.NormFloat64()), 200_000))
		content := text(random, size)
		if i%100 == 99 {
			content = append(content, "here is the scopefs-needle\n"...)
		}
		if err := os.WriteFile(name, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

var words = strings.Fields(
	"the of a file name open read write return error if for func type map string byte path view root list next value")

// text returns at least size bytes in lines.
func text(random *rand.Rand, size int) []byte {
	var b bytes.Buffer
	for b.Len() < size {
		for range 8 {
			fmt.Fprintf(&b, "%s%d ", words[random.IntN(len(words))], random.IntN(100))
		}
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// makePackages makes the tarballs of npm packages, of some files each, and a
// package.json that depends on all of them.
func makePackages(args arguments) error {
	var count int
	if err := args.numbers(&count); err != nil {
		return err
	}
	if err := os.MkdirAll(args[1], 0o755); err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(3, 4))
	depends := map[string]string{}
	for i := range count {
		name := fmt.Sprintf("bench-package-%03d", i)
		content, err := tarball(random, name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(args[1], name+".tgz"), content, 0o644); err != nil {
			return err
		}
		depends[name] = "file:" + name + ".tgz"
	}
	manifest, err := json.MarshalIndent(map[string]any{"name": "bench", "version": "1.0.0", "private": true,
		"dependencies": depends}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(args[1], "package.json"), manifest, 0o644)
}

func tarball(random *rand.Rand, name string) ([]byte, error) {
	files := map[string][]byte{
		"package.json": fmt.Appendf(nil, "{\"name\": %q, \"version\": \"1.0.0\", \"main\": \"index.js\"}\n", name),
	}
	for _, other := range []string{"README.md", "LICENSE", "index.js", "index.d.ts"} {
		files[other] = text(random, 1000)
	}
	for i := range 3 + random.IntN(10) {
		files[fmt.Sprintf("lib/part%d.js", i)] = text(random, 500+random.IntN(5000))
	}
	var b bytes.Buffer
	zipped := gzip.NewWriter(&b)
	w := tar.NewWriter(zipped)
	for file, content := range files {
		if err := w.WriteHeader(&tar.Header{Name: "package/" + file, Mode: 0o644, Size: int64(len(content))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	if err := zipped.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// makeTypescript makes a project of modules that import each other.
func makeTypescript(args arguments) error {
	var modules int
	if err := args.numbers(&modules); err != nil {
		return err
	}
	src := filepath.Join(args[1], "src")
	if err := os.MkdirAll(src, 0o755); err != nil {
		return err
	}
	for i := range modules {
		var b bytes.Buffer
		if i > 0 {
			fmt.Fprintf(&b, "import { value as before } from './m%02d';\n", i-1)
		} else {
			b.WriteString("const before = 0;\n")
		}
		b.WriteString("export const value: number = before + 1;\n")
		if err := os.WriteFile(filepath.Join(src, fmt.Sprintf("m%02d.ts", i)), b.Bytes(), 0o644); err != nil {
			return err
		}
	}
	config := `{"compilerOptions": {"outDir": "out", "rootDir": "src", "strict": true, "module": "commonjs", "types": []}, "include": ["src"]}`
	return os.WriteFile(filepath.Join(args[1], "tsconfig.json"), []byte(config), 0o644)
}
