package sandbox

// refusedHere are calls like refused that only amd64 has.
var refusedHere []uint32
