package rpc

import (
	"context"

	"connectrpc.com/connect"

	"github.com/cloud-sandbox/cloud-sandbox"
	secretv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/secret/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/secrets"
)

// secretStore is the service of Secrets.
type secretStore struct {
	secrets   *secrets.Service
	sandboxes sandbox.Updates
}

func secretOf(s sandbox.Secret) *secretv1.Secret {
	return &secretv1.Secret{
		Name: s.Name, Description: text(s.Description), Hosts: s.Hosts, CreatedAt: timestamp(s.CreatedAt), UpdatedAt: timestamp(s.UpdatedAt),
	}
}

// hostsOf is nil for absent hosts.
func hostsOf(m *secretv1.Hosts) (*sandbox.SecretHosts, error) {
	if m == nil {
		return nil, nil
	}
	hosts, err := sandbox.NewSecretHosts(m.Names)
	return &hosts, err
}

// Create implements the service.
func (s secretStore) Create(ctx context.Context, r *connect.Request[secretv1.CreateRequest]) (*connect.Response[secretv1.CreateResponse], error) {
	hosts, err := hostsOf(r.Msg.Hosts)
	if err != nil {
		return nil, err
	}
	made, err := s.secrets.Create(ctx, tenantOf(ctx), secrets.Request{
		ID: rest.ResourceLike(ctx, "p"), Name: r.Msg.Name, Description: r.Msg.Description, Hosts: hosts, Value: sandbox.SecretValue(r.Msg.Value),
	})
	if err != nil {
		return nil, err
	}
	rest.Made(ctx, made.Name)
	return connect.NewResponse(&secretv1.CreateResponse{Secret: secretOf(made)}), nil
}

// List implements the service.
func (s secretStore) List(ctx context.Context, _ *connect.Request[secretv1.ListRequest]) (*connect.Response[secretv1.ListResponse], error) {
	all, err := s.secrets.List(ctx, tenantOf(ctx))
	if err != nil {
		return nil, err
	}
	res := &secretv1.ListResponse{}
	for _, one := range all {
		res.Secrets = append(res.Secrets, secretOf(one))
	}
	return connect.NewResponse(res), nil
}

// Replace implements the service.
func (s secretStore) Replace(ctx context.Context, r *connect.Request[secretv1.ReplaceRequest]) (*connect.Response[secretv1.ReplaceResponse], error) {
	rest.Names(ctx, r.Msg.Name)
	hosts, err := hostsOf(r.Msg.Hosts)
	if err != nil {
		return nil, err
	}
	replaced, err := s.secrets.Replace(ctx, tenantOf(ctx), secrets.Request{
		Name: r.Msg.Name, Description: r.Msg.Description, Hosts: hosts, Value: sandbox.SecretValue(r.Msg.Value),
	})
	if err != nil {
		return nil, err
	}
	if err := s.sandboxes.SecretChanged(ctx, tenantOf(ctx), replaced.Name); err != nil {
		return nil, err
	}
	return connect.NewResponse(&secretv1.ReplaceResponse{Secret: secretOf(replaced)}), nil
}

// Delete implements the service.
func (s secretStore) Delete(ctx context.Context, r *connect.Request[secretv1.DeleteRequest]) (*connect.Response[secretv1.DeleteResponse], error) {
	rest.Names(ctx, r.Msg.Name)
	if err := rest.DropSecret(ctx, s.secrets, s.sandboxes, tenantOf(ctx), r.Msg.Name); err != nil {
		return nil, err
	}
	return connect.NewResponse(&secretv1.DeleteResponse{}), nil
}
