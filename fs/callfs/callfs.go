package callfs

import (
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

const rootInode = fuse.FUSE_ROOT_ID

// fileSystem decides each request by the thread in its header.
type fileSystem struct {
	fuse.RawFileSystem // ENOSYS for what a read-only mount has no use for
	opt                Options
}

var _ fuse.RawFileSystem = (*fileSystem)(nil)

// owner returns the files of the process that sent a request.
func (s *fileSystem) owner(in *fuse.InHeader) (*Files, fuse.Status) {
	files, err := s.opt.Owner(in.Pid)
	if err != nil {
		return nil, fuse.EIO
	}
	return files, fuse.OK
}

// file returns the file that a request is about, if it is one of the sender's.
func (s *fileSystem) file(in *fuse.InHeader) (f *Files, i int, status fuse.Status) {
	f, status = s.owner(in)
	if !status.Ok() {
		return nil, 0, status
	}
	i, ok := f.at(in.NodeId)
	if !ok {
		if s.opt.Refused != nil && s.opt.Refused(in.Pid) != nil {
			return nil, 0, fuse.EIO
		}
		return nil, 0, fuse.Status(unix.ESTALE)
	}
	return f, i, fuse.OK
}

func (s *fileSystem) String() string { return "scopefs-context" }

// Lookup finds a file of the sender's. The zero validity keeps the entry out of the
// kernel's caches.
func (s *fileSystem) Lookup(_ <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if in.NodeId != rootInode {
		return fuse.ENOTDIR
	}
	f, status := s.owner(in)
	if !status.Ok() {
		return status
	}
	i, ok := f.find(name)
	if !ok {
		return fuse.ENOENT
	}
	out.NodeId = f.first + uint64(i)
	s.attr(f, i, &out.Attr)
	return fuse.OK
}

// rootValid is how long the kernel keeps the attributes of the root, in seconds. They do
// not change, and are the same for everybody.
const rootValid = 1 << 30

// GetAttr returns the attributes of the root, or of a file of the sender's.
func (s *fileSystem) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	if in.NodeId == rootInode {
		out.AttrValid = rootValid
		out.Attr = fuse.Attr{Ino: rootInode, Mode: unix.S_IFDIR | 0o555, Nlink: 2, Owner: s.opt.user()}
		return fuse.OK
	}
	f, i, status := s.file(&in.InHeader)
	if status.Ok() {
		s.attr(f, i, &out.Attr)
	}
	return status
}

func (s *fileSystem) attr(f *Files, i int, out *fuse.Attr) {
	size := uint64(len(f.data[i]))
	*out = fuse.Attr{Ino: f.first + uint64(i), Mode: unix.S_IFREG | 0o444, Nlink: 1, Owner: s.opt.user(), Size: size,
		Blocks: (size + 511) / 512, Blksize: 4096}
	out.SetTimes(&f.made, &f.made, &f.made)
}

// Open opens a file of the sender's for reading.
func (s *fileSystem) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if in.Flags&unix.O_ACCMODE != unix.O_RDONLY {
		return fuse.EROFS
	}
	_, _, status := s.file(&in.InHeader)
	out.OpenFlags = fuse.FOPEN_DIRECT_IO
	return status
}

// Read reads a file of the sender's. Only read(2) has a lock owner: fuse_direct_io,
// linux fs/fuse/file.c. Other requests fill the page cache, which another process
// could read.
func (s *fileSystem) Read(_ <-chan struct{}, in *fuse.ReadIn, _ []byte) (fuse.ReadResult, fuse.Status) {
	if in.ReadFlags&fuse.READ_LOCKOWNER == 0 {
		return nil, fuse.EINVAL
	}
	f, i, status := s.file(&in.InHeader)
	if !status.Ok() {
		return nil, status
	}
	data := f.data[i]
	from := min(in.Offset, uint64(len(data)))
	to := min(from+uint64(in.Size), uint64(len(data)))
	return fuse.ReadResultData(data[from:to]), fuse.OK
}

// OpenDir opens the root.
func (s *fileSystem) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, _ *fuse.OpenOut) fuse.Status {
	if in.NodeId != rootInode {
		return fuse.ENOTDIR
	}
	return fuse.OK
}

// ReadDir lists the sender's files.
func (s *fileSystem) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	f, status := s.owner(&in.InHeader)
	if !status.Ok() {
		return status
	}
	entries := []fuse.DirEntry{{Name: ".", Mode: unix.S_IFDIR, Ino: rootInode}, {Name: "..", Mode: unix.S_IFDIR, Ino: rootInode}}
	if f != nil {
		for i, name := range f.names {
			entries = append(entries, fuse.DirEntry{Name: name, Mode: unix.S_IFREG, Ino: f.first + uint64(i)})
		}
	}
	for i := min(in.Offset, uint64(len(entries))); i < uint64(len(entries)); i++ {
		entries[i].Off = i + 1
		if !out.AddDirEntry(entries[i]) {
			break
		}
	}
	return fuse.OK
}

// StatFs reports an empty file system.
func (s *fileSystem) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	out.NameLen, out.Bsize = unix.NAME_MAX, 4096
	return fuse.OK
}
