package node

import (
	"context"
	"log/slog"

	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Registration answers kubelet, which finds the plugin by a socket in its directory of registrations.
type Registration struct {
	registration.UnimplementedRegistrationServer
	Endpoint string // the plugin's socket, as kubelet sees it
	Log      *slog.Logger
}

// Register adds the service to a server, which listens on RegistrationSocket.
func (r *Registration) Register(to *grpc.Server) { registration.RegisterRegistrationServer(to, r) }

// RegistrationSocket is the name of the socket in kubelet's directory. Kubelet takes whatever socket it finds there.
const RegistrationSocket = Driver + "-reg.sock"

// GetInfo says what the plugin is. Kubelet connects to its endpoint next, and asks for the node.
func (r *Registration) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: Driver, Endpoint: r.Endpoint,
		SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus logs whether kubelet has taken the plugin. If it has not, it tries again.
func (r *Registration) NotifyRegistrationStatus(_ context.Context,
	s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if s.GetPluginRegistered() {
		r.Log.Info("registered with kubelet")
	} else {
		r.Log.Error("kubelet does not register the plugin", "err", s.GetError())
	}
	return &registration.RegistrationStatusResponse{}, nil
}
