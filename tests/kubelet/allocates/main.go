// Calls Allocate many times at once on one connection of grpc-go, made like a kubelet's, while a list stream is open.
//
//	allocates SOCKET CALLS DEVICE
//
// Prints each status code with the number of calls that ended with it.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	plugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

func main() {
	calls, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	dial := func(ctx context.Context, path string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}
	connection, err := grpc.NewClient(
		"passthrough:///"+os.Args[1],
		grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(dial),
	)
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	client := plugin.NewDevicePluginClient(connection)
	stream, err := client.ListAndWatch(ctx, &plugin.Empty{})
	if err != nil {
		panic(err)
	}
	if _, err := stream.Recv(); err != nil {
		panic(err)
	}
	request := &plugin.AllocateRequest{
		ContainerRequests: []*plugin.ContainerAllocateRequest{{DevicesIds: []string{os.Args[3]}}},
	}
	var all sync.WaitGroup
	codes := make(chan string, calls)
	for range calls {
		all.Add(1)
		go func() {
			defer all.Done()
			_, err := client.Allocate(ctx, request)
			codes <- status.Code(err).String()
		}()
	}
	all.Wait()
	close(codes)
	counts := map[string]int{}
	for code := range codes {
		counts[code]++
	}
	for code, count := range counts {
		fmt.Println(code, count)
	}
}
