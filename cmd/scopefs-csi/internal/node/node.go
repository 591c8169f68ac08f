// Package node is the services of a CSI node plugin: https://github.com/container-storage-interface/spec. It has no
// controller: an ephemeral inline volume exists while its pod does.
package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/scopefs/scopefs/cmd/scopefs-csi/internal/rules"
	"github.com/scopefs/scopefs/cmd/scopefs-csi/internal/volumes"
)

// Driver is the name of the plugin, which a volume names.
const Driver = "csi.scopefs"

// The attributes of a volume that the pod's author writes.
const (
	AttributeAgent      = "agent"
	AttributeDefinition = "definition"
	AttributeFrom       = "definitionFrom"
)

// Kubelet sets these attributes of an ephemeral volume of a driver with podInfoOnMount, in place of what the pod's
// author wrote: https://kubernetes-csi.github.io/docs/pod-info.html.
const (
	ephemeralKey = "csi.storage.k8s.io/ephemeral"
	nameKey      = "csi.storage.k8s.io/pod.name"
	namespaceKey = "csi.storage.k8s.io/pod.namespace"
	uidKey       = "csi.storage.k8s.io/pod.uid"
	accountKey   = "csi.storage.k8s.io/serviceAccount.name"
)

// The bounds of what kubelet sends, in bytes.
const (
	maxName = 1 << 10
	maxText = 64 << 10 // of a definition
)

// Server serves the identity and the node service.
type Server struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	Node    string // the name of the node
	Version string
	Volumes *volumes.Volumes
	Ready   func(context.Context) error // fails while no daemon answers
}

// Register adds the services to a server.
func (s *Server) Register(to *grpc.Server) {
	csi.RegisterIdentityServer(to, s)
	csi.RegisterNodeServer(to, s)
}

// GetPluginInfo returns the name of the plugin.
func (s *Server) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: Driver, VendorVersion: s.Version}, nil
}

// GetPluginCapabilities returns none: there is no controller.
func (s *Server) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

// Probe reports whether the daemon answers.
func (s *Server) Probe(ctx context.Context, _ *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(s.Ready(ctx) == nil)}, nil
}

// NodeGetInfo returns the node's name.
func (s *Server) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: s.Node}, nil
}

// NodeGetCapabilities returns none: nothing is staged.
func (s *Server) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

// NodePublishVolume gives a pod the view of an agent.
func (s *Server) NodePublishVolume(ctx context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	want, err := read(r)
	if err == nil {
		err = s.Volumes.Publish(ctx, want)
	}
	if err != nil {
		return nil, status.Error(code(err), err.Error())
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// NodeUnpublishVolume takes it away.
func (s *Server) NodeUnpublishVolume(ctx context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	err := error(nil)
	if r.GetVolumeId() == "" || r.GetTargetPath() == "" || len(r.GetVolumeId()) > maxName {
		err = invalid("the volume's id or the target path is missing, or too long")
	} else {
		err = s.Volumes.Unpublish(ctx, r.GetVolumeId(), r.GetTargetPath())
	}
	if err != nil {
		return nil, status.Error(code(err), err.Error())
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func invalid(format string, args ...any) error {
	return &volumes.InvalidError{Err: fmt.Errorf(format, args...)}
}

func code(err error) codes.Code {
	var wrong *volumes.InvalidError
	var refused *rules.Refused
	switch {
	case errors.As(err, &wrong):
		return codes.InvalidArgument
	case errors.As(err, &refused):
		return codes.PermissionDenied
	case errors.Is(err, volumes.ErrBusy):
		return codes.Aborted
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	default:
		return codes.Unavailable
	}
}

// read returns what a request wants. It refuses what the plugin does not do, rather than to do something else.
func read(r *csi.NodePublishVolumeRequest) (want volumes.Request, err error) {
	set, capability := r.GetVolumeContext(), r.GetVolumeCapability()
	switch {
	case r.GetVolumeId() == "" || len(r.GetVolumeId()) > maxName:
		return want, invalid("the volume's id is missing, or too long")
	case r.GetTargetPath() == "":
		return want, invalid("the target path is missing")
	case capability == nil:
		return want, invalid("the volume's capability is missing")
	case capability.GetMount() == nil:
		return want, invalid("a volume of %s is a file system, and no block device", Driver)
	case capability.GetMount().GetFsType() != "" || len(capability.GetMount().GetMountFlags()) > 0:
		return want, invalid("a volume of %s takes no fsType and no mount flags: remove them", Driver)
	case set[ephemeralKey] != "true":
		return want, invalid("a volume of %s is an ephemeral inline volume of a pod: %s is not true", Driver, ephemeralKey)
	}
	want = volumes.Request{Volume: r.GetVolumeId(), Target: r.GetTargetPath(), ReadOnly: r.GetReadonly()}
	for key, text := range map[string]*string{
		nameKey: &want.Pod.Name, namespaceKey: &want.Pod.Namespace, uidKey: &want.Pod.UID,
		accountKey: &want.Pod.Account, AttributeAgent: &want.Agent,
	} {
		if *text = set[key]; *text == "" || len(*text) > maxName {
			if key == AttributeAgent {
				return want, invalid("the attribute %q is missing, or too long", key)
			}
			return want, invalid("kubelet has not set %s: the CSIDriver needs podInfoOnMount: true", key)
		}
	}
	if want.Narrow = set[AttributeDefinition]; len(want.Narrow) > maxText {
		return want, invalid("definition: is longer than %d bytes", maxText)
	}
	if want.From = set[AttributeFrom]; len(want.From) > maxName {
		return want, invalid("definitionFrom: is longer than %d bytes", maxName)
	}
	known := map[string]bool{
		ephemeralKey: true, nameKey: true, namespaceKey: true, uidKey: true, accountKey: true,
		AttributeAgent: true, AttributeDefinition: true, AttributeFrom: true,
	}
	for key := range set {
		if !known[key] && key != "csi.storage.k8s.io/serviceAccount.tokens" {
			return want, invalid("unknown attribute %q: want agent, and perhaps definition or definitionFrom", key)
		}
	}
	return want, nil
}
