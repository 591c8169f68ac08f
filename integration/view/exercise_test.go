package view

import (
	"bytes"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestExercise does what fsx does: thousands of random operations on one file
// by three descriptors and a mapping, each checked against the bytes that must
// be there.
func TestExercise(t *testing.T) {
	keys := map[string]string{"passthrough": "data: passthrough", "mediated": "data: mediated", "cached": "data: passthrough",
		"kept": "changes: kept", "kept, mediated": "changes: kept, data: mediated",
		"held": "changes: held", "held, mediated": "changes: held, data: mediated"}
	kernel := harness.ThisKernel(t)
	for data, keys := range keys {
		t.Run(data, func(t *testing.T) {
			h := harness.LayOut(t, map[string]string{"x": "view: {" + keys + "}"})
			below := h.Scope("x", "f")
			switch {
			case data == "cached":
				stack(t, h)
			case strings.HasPrefix(data, "held"):
				harness.Plant(t, h.Scope("x"), "f=") // the first change copies it up
				below = h.Base + "/history/x/upper/f"
			}
			h.Start()
			e := &exerciser{t: t, rnd: rand.New(rand.NewPCG(1, uint64(len(data)))), path: h.View("x", "f"),
				maps: kernel.MapsDirect || !strings.HasSuffix(data, "mediated")}
			e.run(4000)
			got, err := os.ReadFile(below)
			require.NoError(t, err)
			require.True(t, bytes.Equal(e.want, got), "the file below differs")
			h.Stop()
			// Where the kernel has none, doctor says so.
			assert.Equal(t, kernel.Passthrough && data == "cached", strings.Contains(h.Log.String(), "no passthrough"))
		})
	}
}

// stack puts the scope on an overlay: the kernel passes nothing through to a
// stacked file system, and caches data instead, as it does for ordinary users.
func stack(t *testing.T, h *harness.Host) {
	dir := h.Base + "/overlay"
	for _, d := range []string{dir + "/lower", dir + "/upper", dir + "/work"} {
		require.NoError(t, os.MkdirAll(d, 0o755))
	}
	require.NoError(t, unix.Mount("overlay", h.Scope("x"), "overlay", 0, "lowerdir="+dir+"/lower,upperdir="+dir+"/upper,workdir="+dir+"/work"))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(h.Scope("x"), unix.MNT_DETACH)) })
}

const exerciseMax = 256 << 10

type exerciser struct {
	t     *testing.T
	rnd   *rand.Rand
	path  string
	maps  bool // shared mappings are possible
	want  []byte
	files [3]*os.File // reading and writing, appending, direct
}

func (e *exerciser) run(steps int) {
	e.open()
	for i := range steps {
		e.step(i)
	}
	e.close()
}

func (e *exerciser) open() {
	for i, flags := range []int{os.O_RDWR | os.O_CREATE, os.O_RDWR | os.O_APPEND, os.O_RDWR} {
		f, err := os.OpenFile(e.path, flags, 0o644)
		require.NoError(e.t, err)
		e.files[i] = f
	}
}

func (e *exerciser) close() {
	for _, f := range e.files {
		require.NoError(e.t, f.Close())
	}
}

func (e *exerciser) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(e.rnd.Uint32())
	}
	return b
}

// grow makes want n bytes long at least.
func (e *exerciser) grow(n int) {
	if n > len(e.want) {
		e.want = append(e.want, make([]byte, n-len(e.want))...)
	}
}

func (e *exerciser) step(i int) {
	t, off, n := e.t, e.rnd.IntN(exerciseMax), 1+e.rnd.IntN(16<<10)
	f := e.files[e.rnd.IntN(2)*2]
	what := ""
	switch e.rnd.IntN(11) {
	case 0, 1:
		what = "write"
		p := e.bytes(n)
		_, err := f.WriteAt(p, int64(off))
		require.NoError(t, err)
		e.grow(off + n)
		copy(e.want[off:], p)
	case 2:
		what = "append"
		if len(e.want) < exerciseMax {
			p := e.bytes(n)
			_, err := e.files[1].Write(p)
			require.NoError(t, err)
			e.want = append(e.want, p...)
		}
	case 3:
		what = "truncate"
		require.NoError(t, f.Truncate(int64(off)))
		e.grow(off)
		e.want = e.want[:off]
	case 4:
		what = "truncate by name"
		require.NoError(t, os.Truncate(e.path, int64(off)))
		e.grow(off)
		e.want = e.want[:off]
	case 5:
		what = "punch hole"
		err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(off), int64(n))
		require.NoError(t, err)
		if off < len(e.want) {
			clear(e.want[off:min(off+n, len(e.want))])
		}
	case 6:
		what = "map"
		e.mapped(f, off, n)
	case 7:
		what = "copy range"
		e.copyRange(f, off, n)
	case 8:
		what = "close and open"
		e.close()
		e.open()
	default:
		what = "read"
	}
	e.check(i, what)
}

// mapped writes through a shared mapping.
func (e *exerciser) mapped(f *os.File, off, n int) {
	if off+n > len(e.want) {
		return
	}
	m, err := unix.Mmap(int(f.Fd()), 0, len(e.want), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if !e.maps {
		require.ErrorIs(e.t, err, unix.ENODEV)
		return
	}
	require.NoError(e.t, err)
	copy(m[off:], e.bytes(n))
	copy(e.want[off:off+n], m[off:])
	require.NoError(e.t, unix.Msync(m, unix.MS_SYNC))
	require.NoError(e.t, unix.Munmap(m))
}

func (e *exerciser) copyRange(f *os.File, off, n int) {
	from := 0
	if off < n || off >= len(e.want) || n > off {
		return // would overlap, or copy nothing
	}
	in, out := int64(from), int64(off)
	done, err := unix.CopyFileRange(int(f.Fd()), &in, int(f.Fd()), &out, n, 0)
	require.NoError(e.t, err)
	e.grow(off + done)
	copy(e.want[off:off+done], e.want[:done])
}

// check reads all of it, by every descriptor and by a new one.
func (e *exerciser) check(i int, what string) {
	st, err := os.Stat(e.path)
	require.NoError(e.t, err)
	require.EqualValues(e.t, len(e.want), st.Size(), "size after step %d, %s", i, what)
	got := make([]byte, len(e.want)+1)
	f := e.files[i%3]
	n, _ := f.ReadAt(got, 0)
	require.Truef(e.t, bytes.Equal(e.want, got[:n]), "content after step %d, %s", i, what)
}
