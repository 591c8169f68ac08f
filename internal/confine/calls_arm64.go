package confine

// oldFileCalls are fileCalls that only amd64 has.
var oldFileCalls []uint32
